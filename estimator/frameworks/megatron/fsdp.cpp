#include "estimator/frameworks/megatron/fsdp.h"

#include <algorithm>
#include <span>

#include "estimator/frameworks/megatron/fsdp_buckets.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/number.h"
#include "estimator/plan/parameters.h"

namespace shardplan::megatron {
namespace {

std::int64_t sum_elements(std::span<const FsdpBucket> buckets, BucketRange range) {
  std::int64_t elements = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { elements += buckets[i].elements; }
  return elements;
}

constexpr std::int64_t kSmallestCapacity = 1'000'000'000;  // elements

// megatron_fsdp.py, _init_fsdp_param_and_grad_buffer: `least`, or one billion elements if that is
// more; under ZeRO-3 twice a unit.
std::int64_t capacity_of(const Job& job, std::int64_t least) {
  return job.profile.suggested_communication_unit_size > 0
             ? job.profile.suggested_communication_unit_size
             : std::max(kSmallestCapacity, least);
}

std::int64_t queue_capacity(const Job& job, const Plan& plan, const PlacedChunk& chunk) {
  return capacity_of(job, plan.zero >= 3 ? 2 * chunk.unit_elements : smallest_bucket(job, plan));
}

// Layers that double buffers have room for: with them a gather, or a queue of reductions, is of at
// most two (need_skip_prefetch, _enforce_double_buffer_limit).
class RoomForLayers {
 public:
  explicit RoomForLayers(const PlacedChunk& chunk) : chunk_(chunk) {}
  // The layer that asks takes room in the pool; a layer outside it takes none.
  void begin(std::size_t bucket) {
    if (chunk_.is_of_pool(bucket)) {
      take(bucket);
    }
  }
  bool take(std::size_t bucket) {
    if (!chunk_.has_pool()) {
      return true;
    }
    const std::int64_t layer = chunk_.layer_of[bucket];
    if (std::ranges::find(layers_, layer) == layers_.end()) {
      layers_.push_back(layer);
    }
    return layers_.size() <= 2;
  }

 private:
  const PlacedChunk& chunk_;
  std::vector<std::int64_t> layers_;
};

RoomForLayers room_beside(const PlacedChunk& chunk, BucketRange layer) {
  RoomForLayers room(chunk);
  for (std::size_t i = layer.first; i < layer.last; ++i) { room.begin(i); }
  return room;
}

// AllGatherPipeline.all_gather_params: whole buckets behind the layer (in backward: before it)
// until they have `prefetch` elements.
BucketRange gathered_forward(const PlacedChunk& chunk, BucketRange layer, std::int64_t prefetch) {
  RoomForLayers room = room_beside(chunk, layer);
  std::int64_t elements = 0;
  while (layer.last < chunk.layers.last && elements < prefetch && room.take(layer.last)) {
    elements += chunk.buckets[layer.last++].elements;
  }
  return layer;
}
BucketRange gathered_backward(const PlacedChunk& chunk, BucketRange layer, std::int64_t prefetch) {
  RoomForLayers room = room_beside(chunk, layer);
  std::int64_t elements = 0;
  while (layer.first > chunk.layers.first && elements < prefetch && room.take(layer.first - 1)) {
    elements += chunk.buckets[--layer.first].elements;
  }
  return layer;
}

// Where a queue ends, newest first, that double buffers let stand beside a bucket to be written.
std::size_t last_beside(const PlacedChunk& chunk, BucketRange queue, std::size_t bucket) {
  RoomForLayers room = room_beside(chunk, {bucket, bucket + 1});
  std::size_t last = queue.first;
  while (last < queue.last && room.take(last)) { ++last; }
  return last;
}

// A layer that is gathered beside others behind it; as if it were next to them.
BucketRange with_layer(BucketRange prefetched, BucketRange layer) {
  if (prefetched.first == prefetched.last) {
    return layer;
  }
  const std::size_t missing =
      std::min(layer.last, prefetched.first) - std::min(layer.first, prefetched.first);
  return {prefetched.first - missing, prefetched.last};
}

// What the embedding's hook gathers behind itself, and the first bucket of a step.
BucketRange gathered_by_embedding(const PlacedChunk& chunk, std::int64_t prefetch) {
  return gathered_forward(chunk, {chunk.layers.first, chunk.layers.first},
                          prefetch - chunk.front_elements);
}

// The recomputation of a layer prefetches nothing, the embedding's hook the first layers. So does
// the head's, whose bucket stands in front of them: these stay until backward gathers the first of
// its own.
void set_gathered(const PlacedChunk& chunk, std::int64_t prefetch, FsdpBuffers& buffers) {
  const auto raise = [&buffers](BucketRange& most, BucketRange range) {
    if (buffers.parameter_bytes(range) > buffers.parameter_bytes(most)) {
      most = range;
    }
  };
  BucketRange prefetched;  // by the backward behind
  for (std::size_t i = chunk.units.size(); i-- > 0;) {
    const PlacedUnit& placed = chunk.units[i];
    FsdpUnit& unit = buffers.units[i];
    if (placed.is_embedding) {
      unit.gathered_forward = gathered_by_embedding(chunk, prefetch);
    }
    if (placed.is_head && chunk.gathers_front) {
      unit.gathered_forward =
          gathered_forward(chunk, {chunk.layers.first, chunk.layers.first}, prefetch);
      unit.gathered_backward = unit.gathered_forward;
    }
    for (std::size_t layer = placed.layers.size(); layer-- > 0;) {
      const BucketRange own = placed.layers[layer];
      raise(unit.gathered_forward, gathered_forward(chunk, own, prefetch));
      raise(unit.gathered_backward, gathered_backward(chunk, own, prefetch));
      raise(unit.gathered_replay, with_layer(prefetched, own));
    }
    if (!placed.layers.empty()) {
      const BucketRange front = placed.layers.front();
      prefetched = {gathered_backward(chunk, front, prefetch).first, front.first};
    }
  }
}

// GradReducePipeline: a bucket that is full waits until those in the queue have no more than
// `capacity` elements, the oldest ones go first. The head's own block counts its bucket while it
// runs.
void set_queued(const PlacedChunk& chunk, std::int64_t capacity, FsdpBuffers& buffers) {
  BucketRange queue{chunk.buckets.size(), chunk.buckets.size()};
  std::size_t open = queue.first;  // the last one that has gradients
  for (std::size_t i = chunk.units.size(); i-- > 0;) {
    FsdpUnit around;
    around.gradients_replay = {open, queue.last};
    around.gradients_backward = around.gradients_replay;
    for (; queue.first > 0 && chunk.spans[queue.first - 1].last >= i; --queue.first) {
      const std::size_t bucket = queue.first - 1;
      queue.last = last_beside(chunk, queue, bucket);
      open = std::min(open, bucket);
      const BucketRange alive{open, queue.last};
      if (buffers.gradient_bytes(alive) > buffers.gradient_bytes(around.gradients_backward)) {
        around.gradients_backward = alive;
      }
      if (chunk.spans[bucket].first < i) {
        break;
      }
      while (sum_elements(chunk.buckets, queue) > capacity) { --queue.last; }
    }
    if (!chunk.units[i].is_head) {
      buffers.units[i].gradients_replay = around.gradients_replay;
      buffers.units[i].gradients_backward = around.gradients_backward;
    }
  }
}

// Of a tied table: the head's part, which autograd keeps until it can add the embedding's.
std::int64_t tied_gradient_bytes(const Job& job, const Plan& plan) {
  return holds_tied_gradient(job, plan) ? local_elements(job, plan, table_parameters(job.model)) *
                                              bytes_of(activation_dtype(plan.precision))
                                        : 0;
}

// The first gradient allocates it: that of the head, whose own block counts it, or of a layer.
FsdpBuffers one_bucket(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  const std::int64_t bytes =
      divided_elements(job, plan, chunk).total() * bytes_of(fsdp_gradient_dtype(plan));
  FsdpBuffers buffers;
  for (const Unit& unit : chunk.units) {
    const bool is_head = unit.blocks.front().kind == BlockKind::kHead;
    FsdpUnit around;
    around.held_bytes = is_head ? 0 : bytes + tied_gradient_bytes(job, plan);
    buffers.units.insert(buffers.units.end(), static_cast<std::size_t>(unit.count), around);
  }
  return buffers;
}

}  // namespace

bool holds_tied_gradient(const Job& job, const Plan& plan) {
  return job.model.tied_embeddings && plan.pp == 1 && is_megatron_fsdp(job, plan) &&
         !fuses_weight_gradients(job, plan);
}

FsdpBuffers fsdp_buffers(const Job& job, const Plan& plan, const ChunkLayout& layout) {
  if (!is_megatron_fsdp(job, plan) || layout.units.empty()) {
    return {};
  }
  if (has_one_bucket(job, plan)) {
    return one_bucket(job, plan, layout);
  }
  const HeadBucket head = head_bucket(job, plan);
  const PlacedChunk chunk = place_chunk(job, plan, layout, head);
  FsdpBuffers buffers{.buckets = chunk.buckets, .units = {}};
  buffers.units.resize(chunk.units.size());
  const std::int64_t capacity = queue_capacity(job, plan, chunk);
  if (plan.zero >= 3) {
    set_gathered(chunk, capacity / 2, buffers);
  }
  set_queued(chunk, capacity, buffers);
  if (chunk.units.back().is_head) {
    const std::int64_t held =
        (head.is_held ? end_bucket(job, plan, head.elements).gradient_bytes : 0) +
        tied_gradient_bytes(job, plan);
    for (std::size_t i = 0; i + 1 < buffers.units.size(); ++i) {
      buffers.units[i].held_bytes = held;
    }
  }
  return buffers;
}

LayerShares fsdp_shares(const Job& job, const Plan& plan, std::int64_t held) {
  const std::int64_t layers = std::ssize(job.model.layers);
  const std::int64_t mixtures = std::ranges::count(job.model.layers, true, &LayerSpec::is_moe);
  const bool divides_experts = expert_state_shards(job, plan) > 1;
  const auto divided = [&](BlockKind kind, std::int64_t count) {
    const LocalParameters local = block_parameters(job, plan, kind);
    return count * (local.dense + (divides_experts ? local.expert : 0));
  };
  const std::int64_t elements =
      (mixtures < layers ? divided(BlockKind::kDenseLayer, layers - mixtures) : 0) +
      (mixtures > 0 ? divided(BlockKind::kMoeLayer, mixtures) : 0);
  const std::int64_t unit = elements / std::max<std::int64_t>(layers, 1);
  if (unit == 0 || held == 0) {
    return {};
  }
  const std::int64_t in_elements = div_ceil(capacity_of(job, 2 * unit) / 2, unit);
  const std::int64_t ahead =
      has_double_buffers(job) ? std::min<std::int64_t>(1, in_elements) : in_elements;
  const double first = number(unit) / number(held);
  const double all = std::min(1.0, first * number(layers) / number(plan.pp));
  return {.layers = all,
          .first = std::min(all, first),
          .ahead = std::min(all, first * number(1 + ahead))};
}

FsdpBucket double_buffers(const Job& job, const Plan& plan, const StageLayout& stage) {
  FsdpBucket most;
  if (!has_double_buffers(job) || !is_megatron_fsdp(job, plan) || plan.zero < 3) {
    return most;
  }
  const HeadBucket head = head_bucket(job, plan);
  for (const ChunkLayout& layout : stage.chunks) {
    const FsdpBucket pool = place_chunk(job, plan, layout, head).pool;
    most = pool.parameter_bytes > most.parameter_bytes ? pool : most;
  }
  return most;
}

// start_param_sync: the bucket of the first parameter, and what its gather is ahead of.
std::int64_t fsdp_bytes_between_steps(const Job& job, const Plan& plan, const ChunkLayout& layout) {
  if (layout.units.empty()) {
    return 0;
  }
  const HeadBucket head = head_bucket(job, plan);
  const PlacedChunk chunk = place_chunk(job, plan, layout, head);
  const std::int64_t prefetch = queue_capacity(job, plan, chunk) / 2;
  const FsdpBuffers buffers{.buckets = chunk.buckets, .units = {}};
  if (!chunk.units.front().is_embedding) {
    const BucketRange first{chunk.layers.first,
                            std::min(chunk.layers.first + 1, chunk.layers.last)};
    return buffers.parameter_bytes(gathered_forward(chunk, first, prefetch));
  }
  const std::int64_t embedding = local_elements(job, plan, embedding_parameters(job.model));
  const std::int64_t ends =
      chunk.gathers_front && head.is_held ? head.elements : embedding + chunk.front_elements;
  return ends * bytes_of(activation_dtype(plan.precision)) +
         buffers.parameter_bytes(gathered_by_embedding(chunk, prefetch));
}

}  // namespace shardplan::megatron
