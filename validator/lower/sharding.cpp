// Data parallelism beside the passes: when gradients are reduced and weights are gathered. Under
// ZeRO 2 and 3 gradients, under ZeRO 3 weights, exist whole for a few units at a time. The policy:
//
// Units are the embedding, every layer, and the head with the final norm (with the embedding where
// one rank ties both). A unit is one flat buffer of dense weights, over the dense shard group, and
// one of experts over theirs; of each every rank of the group owns an equal part. A buffer whose
// shard group is this rank alone is not divided: it holds the whole chunk.
//
// Gradients (ZeRO 0 and 1). The last pass that adds to the gradient of a unit is followed by its
// reduction, beside the backward pass of the unit before; what stays visible is that of the
// embedding, whose pass is the last. A table that is tied over two stages waits for both of them.
//
// Weights (ZeRO 1 and 2). AdamW writes the rank's part of the whole weights; a unit is gathered at
// the start of the next step, in the order of the forward pass and beside it, as Megatron-LM does
// with --overlap-param-gather. Embedding and first layer have nothing to hide behind there: they
// are updated first and gathered beside AdamW of the others. Between two steps a rank vouches only
// for its own part of the rest.
//
// Gradients (ZeRO 2 and 3). The backward pass of a unit writes its gradient into one of two cells
// and is reduce-scattered at once, for every microbatch, beside the backward pass of the next unit;
// the result is added into the rank's shard (grad_dtype). Waiting for the last microbatch would
// need the whole gradient, which is what ZeRO 1 keeps; the price is one reduce-scatter per
// microbatch instead of one per step. Replicas (hybrid sharding), norms under sequence parallelism
// and tied tables on two stages are summed on the shard, once per step.
//
// Weights (ZeRO 3). The rank keeps its shard in bf16 beside the master shard. A unit is gathered
// for every action of the schedule that uses it: before its forward pass, before a replay, before
// its backward pass; unless it still lies in its cell (the last layer, when backward follows
// forward). Nothing stays gathered beyond that, with or without pipeline. A gather starts when the
// cell's last user is done, which is while the unit before computes: prefetch by one unit, across
// the bounds of actions. AdamW writes the shard; nothing is gathered at the end of the step. The
// loss takes the head's gradient in the forward pass, so that the head is gathered and reduced once
// per microbatch, and the embedding's backward pass needs no weights.
//
// Cells. The ends of the model use the first cell, the last layer of a chunk the second, the layers
// before it take turns: memory is one layer and the larger of a layer and an end. Where a chunk has
// both ends and an even number of layers, embedding and first layer share the first cell; the
// embedding computes next to nothing that a transfer could hide behind. A unit has one address for
// all microbatches.
//
// Bits. ZeRO 2 and 3 make the same calls. They give the gradients, norm and weights of ZeRO 0 and 1
// bit by bit where every rank has one microbatch and no table is tied over two stages, or the shard
// group is the rank alone; otherwise ZeRO 0 and 1 sum over microbatches (and both ends of a tied
// table) first and over ranks last, ZeRO 2 and 3 the other way round.
#include "validator/lower/sharding.h"

#include <algorithm>

#include "validator/lower/ops.h"
#include "validator/lower/update.h"

namespace shardplan {
namespace {

void move_weights(const FlatBuffer& buffer, std::int64_t tensor) {
  for (const FlatParameter& p : buffer.parameters) { p.weight->weight.tensor = tensor; }
}

void move_gradients(const FlatBuffer& buffer, std::int64_t tensor) {
  for (const FlatParameter& p : buffer.parameters) { p.weight->gradient.tensor = tensor; }
}

// A tensor as large as the cell, so that memory does not depend on which unit lies there.
View place_in(Lowering& l, const UnitCell& unit_cell, const FlatBuffer& buffer,
              const std::string& name, DType dtype) {
  const std::string prefix = buffer.is_expert ? "expert_" : "";
  TensorSpec spec = exchanged(temporary(prefix + name, 1, unit_cell.elements));
  spec.dtype = dtype;
  return columns_of(l.builder.place(unit_cell.cell, spec), 0, buffer.elements);
}

void gather(Lowering& l, FlatBuffer& buffer) {
  if (buffer.is_gathered_late() && !buffer.is_gathered) {
    gather_updated(l, buffer);
    buffer.is_gathered = true;
  }
  UnitCell& unit_cell = l.unit_weights[buffer.cell];
  if (!buffer.has_weight_shard() || unit_cell.tenant == &buffer) {
    return;
  }
  if (unit_cell.tenant != nullptr) {
    move_weights(*unit_cell.tenant, -1);
  }
  const View all = place_in(l, unit_cell, buffer, "gathered_weights", DType::kBf16);
  emit(l, data_collective(OpKind::kAllGather, buffer.weight, all, buffer.groups.shard),
       "gather_weights");
  move_weights(buffer, all.tensor);
  unit_cell.tenant = &buffer;
}

void begin(Lowering& l, FlatBuffer& buffer) {
  if (buffer.has_gradient_shard()) {
    const View all = place_in(l, l.unit_gradients[buffer.cell], buffer, "unreduced_gradients",
                              l.plan.grad_dtype);
    move_gradients(buffer, all.tensor);
  }
}

// What no operation has written of the unit's gradient: padding between parameters and at the end,
// and parameters that this pass has no gradient for.
void clear_rest(Lowering& l, const FlatBuffer& buffer, const View& all) {
  std::int64_t end = 0;
  const auto clear_up_to = [&](std::int64_t begin) {
    if (end < begin) {
      emit(l,
           {.kind = OpKind::kFill,
            .out = {columns_of(all, end, begin - end)},
            .stream = Stream::kData},
           "clear_gradients");
    }
  };
  for (const FlatParameter& p : buffer.parameters) {
    const View& gradient = p.weight->gradient;
    if (p.begin >= end && l.written.contains({gradient.tensor, gradient.offset})) {
      clear_up_to(p.begin);
      end = p.end;
    }
  }
  clear_up_to(buffer.elements);
}

void end_whole(Lowering& l, const ChunkWeights& w, FlatBuffer& buffer) {
  if (--buffer.passes_left == 0 && !is_tied(l, w, buffer)) {
    reduce_whole(l, buffer);
  }
}

void end_sharded(Lowering& l, FlatBuffer& buffer) {
  const View all{.tensor = buffer.parameters.front().weight->gradient.tensor,
                 .rows = 1,
                 .cols = buffer.elements,
                 .stride = buffer.elements};
  clear_rest(l, buffer, all);
  const bool adds = accumulates(l, buffer.gradient);
  const View sum = adds ? buffer.owned(all) : buffer.gradient;
  emit(l, data_collective(OpKind::kReduceScatter, all, sum, buffer.groups.shard), "gradients");
  if (adds) {
    emit(l,
         {.kind = OpKind::kAdd,
          .in = {buffer.gradient, sum},
          .out = {buffer.gradient},
          .stream = Stream::kData},
         "add_gradients");
  }
  move_gradients(buffer, -1);
  if (--buffer.passes_left == 0) {
    finish_gradients(l, buffer);
  }
}

using IsSharded = bool (FlatBuffer::*)() const;

// Elements of the largest buffer that uses a cell.
std::int64_t largest_in(const Lowering& l, std::size_t cell, IsSharded is_sharded) {
  std::int64_t elements = 0;
  for (const ChunkWeights& w : l.chunks) {
    for (const FlatBuffer& buffer : w.buffers) {
      if (buffer.cell == cell && (buffer.*is_sharded)()) {
        elements = std::max(elements, buffer.elements);
      }
    }
  }
  return elements;
}

std::vector<UnitCell> place_cells(Lowering& l, IsSharded is_sharded, DType dtype) {
  std::vector<UnitCell> cells;
  for (std::size_t i = 0; i < kNumUnitCells; ++i) {
    UnitCell unit_cell{.elements = largest_in(l, i, is_sharded)};
    if (unit_cell.elements > 0) {
      unit_cell.cell = l.builder.standing_cell(
          padded_bytes({.dtype = dtype, .rows = 1, .cols = unit_cell.elements}));
    }
    cells.push_back(unit_cell);
  }
  return cells;
}

}  // namespace

void place_unit_cells(Lowering& l) {
  l.unit_weights = place_cells(l, &FlatBuffer::has_weight_shard, DType::kBf16);
  l.unit_gradients = place_cells(l, &FlatBuffer::has_gradient_shard, l.plan.grad_dtype);
}

void gather_weights(Lowering& l, ChunkWeights& w, const Unit& unit) {
  for (const std::size_t index : unit) { gather(l, w.buffers[index]); }
}

void begin_gradients(Lowering& l, ChunkWeights& w, const Unit& unit) {
  for (const std::size_t index : unit) { begin(l, w.buffers[index]); }
}

void end_gradients(Lowering& l, ChunkWeights& w, const Unit& unit) {
  for (const std::size_t index : unit) {
    FlatBuffer& buffer = w.buffers[index];
    buffer.has_gradient_shard() ? end_sharded(l, buffer) : end_whole(l, w, buffer);
  }
}

}  // namespace shardplan
