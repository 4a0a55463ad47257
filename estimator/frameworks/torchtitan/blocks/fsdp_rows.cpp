#include "estimator/frameworks/torchtitan/blocks/fsdp_rows.h"

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/expert_group.h"
#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"
#include "estimator/frameworks/torchtitan/parameters.h"

namespace shardplan::torchtitan {
namespace {

// The layers before and behind one of that kind, whose buffers its own meet. Dense layers before
// the first with experts are of one kind: all of them as the last.
struct Neighbours {
  TitanParameters before;
  TitanParameters behind;
};

Neighbours neighbours_of(const TitanBlock& block, BlockKind kind) {
  const std::vector<LayerSpec>& layers = block.job.model.layers;
  const auto of = [&](bool is_moe) {
    return is_moe == block.is_moe ? block.parameters
                                  : titan_parameters(block.job, block.plan, is_moe);
  };
  const bool has_one = layers.size() < 2;
  switch (kind) {
    case BlockKind::kFirstLayer: return {of(block.is_moe), of(has_one || layers[1].is_moe)};
    case BlockKind::kDenseLayer: return {of(false), of(block.job.model.has_moe_layers())};
    case BlockKind::kFirstMoeLayer: return {of(false), of(true)};
    case BlockKind::kLastLayer:
      return {of(has_one ? block.is_moe : layers[layers.size() - 2].is_moe), of(block.is_moe)};
    default: return {of(block.is_moe), of(block.is_moe)};
  }
}

}  // namespace

void add_fsdp_gathered(TitanBlock& block, const FsdpSizes& sizes) {
  if (!block.fsdp.reduces_each_backward) {
    return;  // add_titan_pipelined
  }
  add_titan_all_gather(block, sizes.own, sizes.before);
  const auto layer = block.layer_weights();
  add_titan_unsharded(
      block, {.elements = sizes.own,
              .weights = sizes.own == block.parameters.layer ? std::span<const std::int64_t>(layer)
                                                             : std::span<const std::int64_t>(),
              .reshards_forward = sizes.reshards_forward});
}

void add_fsdp_reduction(TitanBlock& block, const FsdpSizes& sizes) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  if (!block.fsdp.reduces_each_backward) {
    return;
  }
  rows.use_as(comm, "fsdp.previous_reduction", sizes.previous, DType::kFp32, Step::kBackwardOutput,
              sizes.previous_until,
              "n: fp32 reduce-scatter input of the block before, held until the next one");
  rows.use_as(comm, "fsdp.reduction_input", sizes.own, DType::kFp32, Step::kBackwardInput,
              Step::kBackwardInput, "n: fp32 reduce-scatter input");
}

void add_layer_fsdp(TitanBlock& block, BlockKind kind) {
  const TitanParameters& p = block.parameters;
  const Neighbours near = neighbours_of(block, kind);
  const auto gathered_experts = [&block](const TitanParameters& of) {
    return expert_shard_size(block.job, block.plan) > 1 ? of.experts : 0;
  };
  FsdpSizes sizes{.own = p.layer,
                  .next = kind == BlockKind::kFirstLayer ? p.embedding : near.before.layer,
                  .previous = kind == BlockKind::kLastLayer ? p.head : near.behind.layer,
                  .before = kind == BlockKind::kFirstLayer ? p.embedding : near.before.layer,
                  .reshards_forward = block.fsdp.reshards_forward};
  if (block.fsdp.root_holds_ends && kind == BlockKind::kFirstLayer) {
    sizes.next = 0;  // there already
    sizes.before = p.embedding + p.head;
  } else if (block.fsdp.root_holds_ends && kind == BlockKind::kLastLayer) {
    sizes.previous = 0;  // not reduced yet
    sizes.reshards_forward =
        block.job.profile.reshard_after_forward == ReshardAfterForward::kAlways;
  }
  if (kind != BlockKind::kFirstLayer && near.before.experts > 0) {
    sizes.next += gathered_experts(near.before);
    sizes.before = gathered_experts(near.before);
  }
  if (block.groups_experts()) {
    sizes.previous_until = Step::kBackwardFc1Weight;  // the experts' come next
  }
  if (block.fsdp.is_sharded) {
    add_fsdp_gathered(block, sizes);
    if (block.groups_experts()) {
      add_titan_expert_group(block, kind == BlockKind::kLastLayer);
    } else if (block.plan.ep > 1) {
      block.gather("fsdp.next_gather_output", near.behind.layer + gathered_experts(near.behind),
                   Step::kForwardInput, Step::kForwardOutput, "n: of the next block");
    }
    if (sizes.reshards_forward && block.fsdp.reduces_each_backward) {
      block.gather("fsdp.prefetched_parameters", sizes.next, Step::kBackwardOutput,
                   Step::kBackwardInput,
                   "n: all-gather output of the block whose backward is next");
    }
    add_fsdp_reduction(block, sizes);
    if (!block.fsdp.reduces_each_backward) {
      add_titan_pipelined(block, sizes.own, GroupEnd::kLayer);
      if (block.fsdp.reshards_forward) {
        const bool is_first = kind == BlockKind::kFirstLayer;
        add_titan_gathered_in_turn(block, {.elements = sizes.own, .next = is_first ? 0 : p.layer});
      }
    }
  }
  block.rows.rows.push_back(titan_gradient(block, sizes.own, Step::kWeight));
  add_titan_reductions(block, kind);
}

// An all-gather's output lives until the next block's has been copied out, so that at the start of
// a block there are two; its input is this rank's shard in bf16.
void add_titan_all_gather(TitanBlock& block, std::int64_t own, std::int64_t before) {
  const std::int64_t shard = dense_shard_size(block.job, block.plan);
  block.gather("fsdp.previous_all_gather", before, Step::kForwardInput, Step::kForwardInput,
               "n: output of the block before, not freed yet");
  const bool casts = own != block.parameters.layer || block.parameter_dtype() == DType::kFp32;
  block.gather("fsdp.all_gather_input", casts ? div_ceil(own, shard) : 0, Step::kForwardInput,
               Step::kForwardInput, "n/S: this rank's shard, cast");
  const bool experts_follow = block.groups_experts() && own == block.parameters.layer;
  block.gather("fsdp.all_gather_output", own, Step::kForwardInput,
               experts_follow ? Step::kForwardDispatch : Step::kForwardLogits,
               "n: kept until the next group has been gathered");
}

void add_titan_unsharded(TitanBlock& block, const TitanUnsharded& of) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  const auto split_gradient = [&] {
    if (!of.weights.empty()) {
      rows.split_last(of.weights);
    }
  };
  if (!of.reshards_forward) {
    rows.keep("fsdp.unsharded_parameters", of.elements, block.shape.dtype,
              {.born = Step::kForwardInput,
               .last_forward_use = of.last_forward_use,
               .dies = Step::kBackwardNorm},
              "n: not resharded after forward");
    rows.rows.back().component = comm;
    rows.rows.back().outlives_recompute = true;
    split_gradient();
    return;
  }
  rows.use_as(comm, "fsdp.unsharded_parameters", of.elements, block.shape.dtype,
              Step::kForwardInput, of.last_forward_use, "n");
  split_gradient();
  rows.use_as(comm, "fsdp.unsharded_again", of.elements, block.shape.dtype, of.gathered_again,
              Step::kBackwardNorm, "n: gathered again for backward");
  split_gradient();
}

// What a pipeline does once a step for all microbatches of a block: gathers its parameters, and
// reduces its gradients behind the last backward of the chunk (pipelining/stage.py,
// perform_reduce_grad), when they have been added up whole. The reduce-scatter's input lives beside
// them; its output comes when they are freed, but for the last one, which a variable of
// foreach_reduce still names and only a table makes large. Under tp the embedding's gradient is
// dense, and its rows are picked before anything is dropped.
void add_titan_pipelined(TitanBlock& block, std::int64_t own, GroupEnd end) {
  RowList& rows = block.rows;
  const auto add = [&rows](Component component, std::string_view name, std::int64_t elements,
                           DType dtype, RowOf of, std::string_view formula) {
    rows.use_as(component, name, elements, dtype, Step::kWeight, Step::kWeight, formula);
    if (elements > 0) {
      rows.rows.back().of = of;
    }
  };
  const Component comm = Component::kCommunication;
  const std::int64_t share = div_ceil(own, dense_shard_size(block.job, block.plan));
  add(comm, "fsdp.unsharded_parameters", own, block.shape.dtype, RowOf::kGathered,
      "n: gathered for all microbatches of the chunk");
  if (end == GroupEnd::kRowsOfTable) {
    add(Component::kGradients, "fsdp.table_gradient_rows", own, DType::kFp32, RowOf::kReduction,
        "V/t*h: this rank's rows of the table's gradient");
    add(comm, "fsdp.unsharded_until_reduced", own, block.shape.dtype, RowOf::kReduction, "n");
  } else {
    add(comm, "fsdp.reduction_input", own, DType::kFp32, RowOf::kReduction,
        "n: fp32 reduce-scatter input");
    add(comm, "fsdp.reduction_output", end == GroupEnd::kTable ? share : 0, DType::kFp32,
        RowOf::kReduction, "n/S: of the reduce-scatter, while the table's gradient is still there");
  }
  add(Component::kGradients, "gradients.sharded", share, DType::kFp32, RowOf::kReduced,
      "n/S: output of the reduce-scatter, the parameter's gradient");
}

// Blocks of a pipeline that reshard gather for themselves in forward, and in a backward that finds
// nothing there, which leaves them gathered (set_reshard_after_backward of pipelining/stage.py).
// Forwards that gather, with a buffer, come before gradients exist; those behind a backward find
// all parameters.
void add_titan_gathered_in_turn(TitanBlock& block, const TitanInTurn& of) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  rows.use_as(comm, "fsdp.unsharded_in_turn", of.elements, block.shape.dtype, Step::kForwardInput,
              of.last_forward_use, "n: dropped after the block's forward");
  if (of.elements > 0) {
    rows.rows.back().is_not_replayed = true;
  }
  rows.use_as(comm, "fsdp.unsharded_again", of.elements, block.shape.dtype, of.gathered_again,
              kLastBackward, "n: gathered again for backward");
  if (of.elements > 0) {
    rows.rows.back().gathers = true;
  }
  block.gather("fsdp.prefetched_parameters", of.next, of.gathered_again, kLastBackward,
               "n: all-gather output of the block whose backward is next");
  if (of.next > 0) {
    rows.rows.back().gathers = true;
  }
}

}  // namespace shardplan::torchtitan
