// One action of the pipeline schedule: a chunk's forward or backward pass of one microbatch, with
// what it receives, keeps, recomputes and sends.
#include "validator/lower/chunk.h"

#include <algorithm>

#include "validator/lower/activations.h"
#include "validator/lower/ends.h"
#include "validator/lower/layer.h"
#include "validator/lower/ops.h"
#include "validator/lower/sharding.h"
#include "validator/lower/weights.h"

namespace shardplan {
namespace {

TensorSpec residual(const std::string& name, const Lowering& l) {
  return temporary(name, l.sizes.rows, l.sizes.hidden);
}

std::vector<LayerGroup> layer_groups(const Lowering& l, const ModelChunk& chunk) {
  const Recompute& recompute = l.plan.recompute;
  const bool is_full = recompute.granularity == RecomputeGranularity::kFull;
  const bool is_uniform = is_full && recompute.method == RecomputeMethod::kUniform;
  std::vector<LayerGroup> groups;
  for (std::int64_t first = 0; first < chunk.num_layers;) {
    LayerGroup group{.first = first};
    if (is_uniform) {
      group.count = std::min(recompute.num_layers, chunk.num_layers - first);
    }
    group.is_recomputed = is_uniform || (is_full && first < recompute.num_layers);
    groups.push_back(group);
    first += group.count;
  }
  return groups;
}

// A message between neighbouring chunks: about the boundary in front of chunk `position`.
Operation message(const Lowering& l, OpKind kind, std::int64_t peer, std::int64_t boundary) {
  return {.kind = kind,
          .attributes = {.peer = peer,
                         .tag = boundary * num_microbatches(l.job, l.plan) + l.microbatch},
          .group = l.groups.pp,
          .stream = kind == OpKind::kSend ? Stream::kSend : Stream::kReceive};
}

std::int64_t position(const Lowering& l) {
  return position_of_chunk(l.plan, l.at.pp, l.chunk);
}

void send(Lowering& l, const View& what, std::int64_t to, const std::string& label) {
  Operation op = message(l, OpKind::kSend, pp_rank_of_chunk(l.plan, to), std::max(position(l), to));
  op.in = {what};
  emit(l, std::move(op), label);
}

void receive(Lowering& l, const View& what, std::int64_t from, const std::string& label) {
  Operation op =
      message(l, OpKind::kReceive, pp_rank_of_chunk(l.plan, from), std::max(position(l), from));
  op.out = {what};
  emit(l, std::move(op), label);
}

View in_turn(Lowering& l, const std::vector<Cell>& cells, std::int64_t& used,
             const TensorSpec& spec) {
  const Cell& cell = cells[static_cast<std::size_t>(used++) % cells.size()];
  return l.builder.place(cell, spec);
}

void begin(Lowering& l, const std::string& phase, std::int64_t chunk, std::int64_t microbatch,
           const Slot& slot) {
  l.phase = phase;
  l.chunk = chunk;
  l.microbatch = microbatch;
  l.layer = -1;
  l.builder.cut(phase + " chunk " + std::to_string(chunk) + " slot " + std::to_string(slot.index));
}

const LayerWeights& gathered_layer(Lowering& l, ChunkWeights& w, std::int64_t index) {
  const LayerWeights& layer = w.layers[static_cast<std::size_t>(index)];
  l.layer = layer.layer;
  gather_weights(l, w, layer.unit);
  return layer;
}

View backward_of_layer(Lowering& l, ChunkWeights& w, std::int64_t index, const LayerActivations& a,
                       const View& dx) {
  const LayerWeights& layer = gathered_layer(l, w, index);
  begin_gradients(l, w, layer.unit);
  const View input_gradient = layer_backward(l, layer, a, dx);
  at_weight_gradients(l, [&w, &layer](Lowering& at) { end_gradients(at, w, layer.unit); });
  return input_gradient;
}

// Runs a recomputed group forward, its inner layers' outputs taking turns on the frame.
void forward_recomputed(Lowering& l, ChunkWeights& w, const LayerGroup& group, View x,
                        const View& out) {
  const FrameScope scope(l.builder);
  const std::int64_t bytes = padded_bytes(residual("input", l));
  std::vector<Cell> cells;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(2, group.count - 1); ++i) {
    cells.push_back(l.builder.frame_cell(bytes));
  }
  std::int64_t used = 0;
  for (std::int64_t i = 0; i < group.count; ++i) {
    const FrameScope layer(l.builder);
    const View y = i + 1 == group.count ? out : in_turn(l, cells, used, kept(residual("input", l)));
    const LayerWeights& weights = gathered_layer(l, w, group.first + i);
    layer_forward(l, weights, frame_activations(l, weights.layer, x), y);
    x = y;
  }
}

// Runs a recomputed group forward again, keeping everything on the frame, then backward.
View backward_recomputed(Lowering& l, ChunkWeights& w, const LayerGroup& group, View x, View dx) {
  const FrameScope scope(l.builder);
  std::vector<LayerActivations> layers;
  for (std::int64_t i = 0; i < group.count; ++i) {
    const PhaseScope replay(l, "replay");
    const LayerWeights& layer = gathered_layer(l, w, group.first + i);
    layers.push_back(frame_activations(l, layer.layer, x));
    if (i + 1 < group.count) {
      x = l.builder.push(kept(residual("input", l)));
      layer_forward(l, layer, layers.back(), x);
    } else {
      layer_replay(l, layer, layers.back());
    }
  }
  for (std::int64_t i = group.count - 1; i >= 0; --i) {
    dx = backward_of_layer(l, w, group.first + i, layers[static_cast<std::size_t>(i)], dx);
  }
  return dx;
}

View chunk_input(Lowering& l, ChunkWeights& w, const InFlight& flight) {
  const View x = l.builder.keep(flight.slot, kept(residual("input", l)));
  if (w.chunk.has_embedding) {
    gather_weights(l, w, w.embedding_unit);
    embedding_forward(l, w, x);
  } else {
    receive(l, x, position(l) - 1, "receive");
  }
  return x;
}

// Where the last layer of the chunk writes. With the head at the bottom of the frame, so that the
// frames of all layers begin at one address: whether an addition is fused with the norm behind it
// does not depend on the layer.
View chunk_output(Lowering& l, const ChunkWeights& w) {
  if (w.chunk.has_head) {
    return l.builder.push(residual("final_norm.input", l));
  }
  return in_turn(l, l.output_cells, l.num_outputs, exchanged(residual("output", l)));
}

// Of the chunk's output: kept for a delayed weight gradient, or where it is updated in place.
View output_gradient(Lowering& l) {
  const TensorSpec spec = residual("output_gradient", l);
  return l.pending != nullptr ? for_weight_gradient(l, spec)
                              : in_turn(l, l.gradient_cells, l.num_gradients, spec);
}

PendingWeights& begin_pending(Lowering& l, const ChunkWeights& w, const InFlight& flight) {
  PendingWeights& pending = l.pending_weights[{l.chunk, l.microbatch}];
  pending.inputs = flight.inputs;
  pending.slot = l.builder.take_slot(SlotRing::kPending);
  pending.first_layer = w.chunk.first_layer;
  if (!w.chunk.has_embedding) {
    pending.input_gradient =
        in_turn(l, l.gradient_cells, l.num_gradients, residual("output_gradient", l));
  }
  return pending;
}

}  // namespace

void chunk_forward(Lowering& l, std::int64_t chunk, std::int64_t microbatch) {
  ChunkWeights& w = l.chunks[static_cast<std::size_t>(chunk)];
  const FrameScope scope(l.builder);
  InFlight flight{.slot = l.builder.take_slot(SlotRing::kSaved)};
  flight.inputs = l.splits_backward() ? l.builder.take_slot(SlotRing::kInputs) : flight.slot;
  begin(l, "forward", chunk, microbatch, flight.slot);
  const View last = chunk_output(l, w);
  View x = chunk_input(l, w, flight);
  flight.layers.resize(w.layers.size());
  for (const LayerGroup& group : layer_groups(l, w.chunk)) {
    const bool is_last = group.first + group.count == w.chunk.num_layers;
    LayerActivations& first = flight.layers[static_cast<std::size_t>(group.first)];
    first = group.is_recomputed ? LayerActivations{.x = x}
                                : kept_activations(l, w.chunk.first_layer + group.first, x, flight);
    const View out = is_last ? last : l.builder.keep(flight.slot, kept(residual("input", l)));
    if (group.is_recomputed) {
      forward_recomputed(l, w, group, x, out);
    } else {
      layer_forward(l, gathered_layer(l, w, group.first), first, out);
    }
    x = out;
  }
  l.layer = -1;
  if (w.chunk.has_head) {
    flight.output_gradient = l.builder.keep(flight.inputs, residual("output_gradient", l));
    gather_weights(l, w, w.head_unit);
    begin_gradients(l, w, w.head_unit);
    head(l, w, x, flight.output_gradient);
    end_gradients(l, w, w.head_unit);
  } else {
    send(l, x, position(l) + 1, "send");
  }
  l.in_flight[{chunk, microbatch}] = std::move(flight);
}

void chunk_backward(Lowering& l, std::int64_t chunk, std::int64_t microbatch) {
  ChunkWeights& w = l.chunks[static_cast<std::size_t>(chunk)];
  const InFlight flight = std::move(l.in_flight.at({chunk, microbatch}));
  l.in_flight.erase({chunk, microbatch});
  begin(l, "backward", chunk, microbatch, flight.slot);
  l.pending = l.splits_backward() ? &begin_pending(l, w, flight) : nullptr;
  View dx = flight.output_gradient;
  if (!w.chunk.has_head) {
    dx = output_gradient(l);
    receive(l, dx, position(l) + 1, "receive");
  }
  const std::vector<LayerGroup> groups = layer_groups(l, w.chunk);
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    const LayerActivations& first = flight.layers[static_cast<std::size_t>(group->first)];
    if (group->is_recomputed) {
      dx = backward_recomputed(l, w, *group, first.x, dx);
    } else {
      dx = backward_of_layer(l, w, group->first, first, dx);
    }
  }
  l.layer = -1;
  if (w.chunk.has_embedding) {
    at_weight_gradients(l, [&w, dx](Lowering& at) {
      begin_gradients(at, w, w.embedding_unit);
      embedding_backward(at, w, dx);
      end_gradients(at, w, w.embedding_unit);
    });
  } else {
    send(l, dx, position(l) - 1, "send");
  }
  l.pending = nullptr;
  l.builder.free_slot(flight.slot);
}

void chunk_weights(Lowering& l, std::int64_t chunk, std::int64_t microbatch) {
  const PendingWeights pending = std::move(l.pending_weights.at({chunk, microbatch}));
  l.pending_weights.erase({chunk, microbatch});
  begin(l, "weight", chunk, microbatch, pending.slot);
  for (const auto& work : pending.work) { work(l); }
  l.builder.free_slot(pending.inputs);
  l.builder.free_slot(pending.slot);
}

}  // namespace shardplan
