#include "estimator/megatron_fsdp.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "estimator/block_rows.h"
#include "estimator/parameters.h"
#include "estimator/stage_tensors.h"

namespace shardplan {
namespace {

// training/training.py, get_model: without overlapped reduction one bucket for all.
std::int64_t smallest_bucket(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSmallest = 40'000'000;
  constexpr std::int64_t kPerRank = 1'000'000;
  return job.profile.overlap_grad_reduce
             ? std::max(kSmallest, kPerRank * data_parallel_size(job, plan) * plan.cp)
             : 0;
}

std::int64_t elements_of(const Job& job, const Plan& plan,
                         const std::vector<ParameterTensor>& tensors) {
  std::int64_t elements = 0;
  for (const ParameterTensor& tensor : tensors) { elements += local_elements(job, plan, tensor); }
  return elements;
}

// Of those that are not 0; at most kMostBucketElements.
std::int64_t common_multiple(std::initializer_list<std::int64_t> widths) {
  std::int64_t multiple = 1;
  for (const std::int64_t width : widths) {
    const std::int64_t step = width == 0 ? 1 : width / std::gcd(multiple, width);
    multiple = multiple > kMostBucketElements / step ? kMostBucketElements : multiple * step;
  }
  return multiple;
}

std::int64_t padded_ends(const Job& job, const Plan& plan, std::int64_t elements) {
  return round_up(elements, dense_shard_size(job, plan) * job.model.hidden);
}

struct LayerBuckets {
  std::vector<FsdpBucket> buckets;
  std::int64_t elements = 0;  // without padding
};

// A group of parameters with the types and ranks of one plan.
class BucketMaker {
 public:
  BucketMaker(const Job& job, const Plan& plan)
      : job_(job),
        plan_(plan),
        dense_shard_(dense_shard_size(job, plan)),
        expert_shard_(expert_state_shards(job, plan)),
        parameter_bytes_(plan.zero >= 3 ? bytes_of(activation_dtype(plan.precision)) : 0),
        gradient_bytes_(bytes_of(fsdp_gradient_dtype(plan))) {}

  FsdpBucket make(std::int64_t elements, std::int64_t shard) const {
    const bool is_divided = shard > 1;
    return {.elements = elements,
            .parameter_bytes = is_divided ? elements * parameter_bytes_ : 0,
            .gradient_bytes = is_divided ? elements * gradient_bytes_ : 0};
  }
  // Embedding and head, whose gathered parameters stay for the step: rows of the state.
  FsdpBucket make_end(std::int64_t elements) const {
    FsdpBucket bucket = make(elements, dense_shard_);
    bucket.parameter_bytes = 0;
    return bucket;
  }

  // In model order. ZeRO-2 knows no layers: its buckets are cut from all parameters alike.
  LayerBuckets of_layer(BlockKind kind) const {
    const LocalParameters local = block_parameters(job_, plan_, kind);
    const RowMultiples rows = row_multiples(job_, plan_, kind);
    LayerBuckets layer{.buckets = {}, .elements = local.dense + local.expert};
    const auto add = [&](std::int64_t elements, std::int64_t shard, std::int64_t row) {
      const std::int64_t parts =
          plan_.zero >= 3 ? 1 : std::max<std::int64_t>(1, elements / smallest_bucket(job_, plan_));
      const FsdpBucket part = make(round_up(div_ceil(elements, parts), shard * row), shard);
      layer.buckets.insert(layer.buckets.end(), static_cast<std::size_t>(elements > 0 ? parts : 0),
                           part);
    };
    add(local.dense, dense_shard_, rows.dense);
    add(local.expert, expert_shard_, rows.expert);
    return layer;
  }

 private:
  const Job& job_;
  const Plan& plan_;
  std::int64_t dense_shard_;
  std::int64_t expert_shard_;
  std::int64_t parameter_bytes_;
  std::int64_t gradient_bytes_;
};

bool is_layer(BlockKind kind) {
  return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer || kind == BlockKind::kMtp;
}

// A unit of the chunk as its buckets, front to back.
struct PlacedUnit {
  std::vector<BucketRange> layers;
  BucketRange whole;
  bool is_head = false;
  bool is_embedding = false;
};

struct PlacedChunk {
  std::vector<FsdpBucket> buckets;
  std::vector<PlacedUnit> units;
  BucketRange layers;              // buckets of layers
  std::int64_t unit_elements = 0;  // of a layer on average, without padding
};

std::int64_t sum_elements(std::span<const FsdpBucket> buckets, BucketRange range) {
  std::int64_t elements = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { elements += buckets[i].elements; }
  return elements;
}

using BucketsOfKind = std::array<LayerBuckets, kNumBlockKinds>;  // of the kinds that are there

BucketsOfKind buckets_of_kinds(const BucketMaker& maker, const ChunkLayout& layout) {
  BucketsOfKind kinds;
  for (const Unit& unit : layout.units) {
    for (const BlockRun& run : unit.blocks) {
      LayerBuckets& layer = kinds[static_cast<std::size_t>(run.kind)];
      if (is_layer(run.kind) && layer.buckets.empty()) {
        layer = maker.of_layer(run.kind);
      }
    }
  }
  return kinds;
}

void place_unit(const BucketsOfKind& kinds, const Unit& unit, PlacedChunk& chunk) {
  PlacedUnit placed{.layers = {},
                    .whole = {chunk.buckets.size(), chunk.buckets.size()},
                    .is_head = unit.blocks.front().kind == BlockKind::kHead,
                    .is_embedding = unit.blocks.front().kind == BlockKind::kEmbedding};
  for (const BlockRun& run : unit.blocks) {
    if (!is_layer(run.kind)) {
      continue;
    }
    const std::vector<FsdpBucket>& of_layer = kinds[static_cast<std::size_t>(run.kind)].buckets;
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::size_t first = chunk.buckets.size();
      chunk.buckets.insert(chunk.buckets.end(), of_layer.begin(), of_layer.end());
      placed.layers.push_back({first, chunk.buckets.size()});
    }
  }
  placed.whole.last = chunk.buckets.size();
  chunk.units.push_back(std::move(placed));
}

PlacedChunk place_chunk(const Job& job, const Plan& plan, const ChunkLayout& layout,
                        const HeadBucket& head) {
  const BucketMaker maker(job, plan);
  PlacedChunk chunk;
  std::int64_t num_layers = 0;
  const auto has = [&](BlockKind kind) {
    return std::ranges::any_of(layout.units,
                               [&](const Unit& unit) { return unit.blocks.front().kind == kind; });
  };
  const bool has_head = has(BlockKind::kHead);
  // A bucket that waits for the embedding's gradients holds those, too.
  if (has(BlockKind::kEmbedding) && !(has_head && head.is_held)) {
    chunk.buckets.push_back(maker.make_end(
        padded_ends(job, plan, elements_of(job, plan, embedding_parameters(job.model)))));
  }
  chunk.layers.first = chunk.buckets.size();
  const BucketsOfKind kinds = buckets_of_kinds(maker, layout);
  for (const Unit& unit : layout.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) { place_unit(kinds, unit, chunk); }
    for (const BlockRun& run : unit.blocks) {
      chunk.unit_elements +=
          unit.count * run.count * kinds[static_cast<std::size_t>(run.kind)].elements;
      num_layers += is_layer(run.kind) ? unit.count * run.count : 0;
    }
  }
  chunk.unit_elements /= std::max<std::int64_t>(num_layers, 1);
  chunk.layers.last = chunk.buckets.size();
  if (has_head && !head.is_held) {
    chunk.buckets.push_back(maker.make_end(head.elements));
  }
  return chunk;
}

constexpr std::int64_t kSmallestCapacity = 1'000'000'000;  // elements

// megatron_fsdp.py, _init_fsdp_param_and_grad_buffer: twice a unit, or one billion elements if that
// is more.
std::int64_t queue_capacity(const Job& job, const Plan& plan, const PlacedChunk& chunk) {
  if (job.profile.suggested_communication_unit_size > 0) {
    return job.profile.suggested_communication_unit_size;
  }
  return std::max(kSmallestCapacity,
                  plan.zero >= 3 ? 2 * chunk.unit_elements : smallest_bucket(job, plan));
}

// AllGatherPipeline.all_gather_params: whole buckets behind the layer (in backward: before it)
// until they have `prefetch` elements.
BucketRange gathered_forward(const PlacedChunk& chunk, BucketRange layer, std::int64_t prefetch) {
  std::int64_t elements = 0;
  while (layer.last < chunk.layers.last && elements < prefetch) {
    elements += chunk.buckets[layer.last++].elements;
  }
  return layer;
}
BucketRange gathered_backward(const PlacedChunk& chunk, BucketRange layer, std::int64_t prefetch) {
  std::int64_t elements = 0;
  while (layer.first > chunk.layers.first && elements < prefetch) {
    elements += chunk.buckets[--layer.first].elements;
  }
  return layer;
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

// The recomputation of a layer prefetches nothing, the embedding's hook the first layers.
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
      unit.gathered_forward =
          gathered_forward(chunk, {chunk.layers.first, chunk.layers.first}, prefetch);
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
// `capacity` elements, the oldest ones go first.
void set_queued(const PlacedChunk& chunk, std::int64_t capacity, FsdpBuffers& buffers) {
  BucketRange queue{chunk.buckets.size(), chunk.buckets.size()};
  const auto fill = [&](std::size_t bucket, BucketRange& most) {
    const BucketRange alive{bucket, queue.last};
    if (buffers.gradient_bytes(alive) > buffers.gradient_bytes(most)) {
      most = alive;
    }
    while (sum_elements(chunk.buckets, queue) > capacity) { --queue.last; }
    queue.first = bucket;
  };
  BucketRange of_head;
  for (std::size_t bucket = chunk.buckets.size(); bucket-- > chunk.layers.last;) {
    fill(bucket, of_head);  // its own block counts it while it runs
  }
  for (std::size_t i = chunk.units.size(); i-- > 0;) {
    const PlacedUnit& placed = chunk.units[i];
    FsdpUnit& unit = buffers.units[i];
    if (placed.is_head) {
      continue;
    }
    unit.gradients_replay = queue;
    unit.gradients_backward = queue;
    for (std::size_t bucket = placed.whole.last; bucket-- > placed.whole.first;) {
      fill(bucket, unit.gradients_backward);
    }
    for (std::size_t end = chunk.layers.first; placed.is_embedding && end-- > 0;) {
      fill(end, unit.gradients_backward);
    }
  }
}

// ZeRO-2 without overlapped reduction: one bucket of all gradients.
bool has_one_bucket(const Job& job, const Plan& plan) {
  return plan.zero < 3 && smallest_bucket(job, plan) == 0;
}

FsdpBuffers one_bucket(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  LocalParameters all;
  FsdpBuffers buffers;
  for (const Unit& unit : chunk.units) {
    for (const BlockRun& run : unit.blocks) {
      const LocalParameters local = block_parameters(job, plan, run.kind);
      all.dense += unit.count * run.count * local.dense;
      all.expert += unit.count * run.count * local.expert;
    }
    buffers.units.insert(buffers.units.end(), static_cast<std::size_t>(unit.count), {});
  }
  all.dense += chunk.has_embedding_copy ? elements_of(job, plan, table_parameters(job.model)) : 0;
  const BucketMaker maker(job, plan);
  buffers.buckets = {maker.make(all.dense, dense_shard_size(job, plan)),
                     maker.make(all.expert, expert_state_shards(job, plan))};
  for (FsdpUnit& unit : buffers.units) {
    unit.gradients_replay = unit.gradients_backward = {0, buffers.buckets.size()};
  }
  return buffers;
}

}  // namespace

bool is_megatron_fsdp(const Job& job, const Plan& plan) {
  return job.profile.memory_model == MemoryModel::kMegatron && plan.zero >= 2;
}

Plan without_fsdp(const Job& job, Plan plan) {
  plan.zero = is_megatron_fsdp(job, plan) ? 1 : plan.zero;
  return plan;
}

DType fsdp_gradient_dtype(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? DType::kFp32 : plan.grad_dtype;
}

// Widths are the columns of weight_shapes.
RowMultiples row_multiples(const Job& job, const Plan& plan, BlockKind kind) {
  const ModelSpec& model = job.model;
  const std::int64_t hidden = kind == BlockKind::kMtp ? 2 * model.hidden : model.hidden;
  const std::int64_t heads = div_ceil(model.num_heads, plan.tp);
  const bool is_moe =
      kind == BlockKind::kMoeLayer || (kind == BlockKind::kMtp && model.layers.back().is_moe);
  const std::int64_t ffn = div_ceil(is_moe ? model.moe.shared_ffn : model.ffn, plan.tp);
  const std::int64_t dense =
      model.is_mla() ? common_multiple({hidden, model.mla.q_lora_rank, model.mla.kv_lora_rank,
                                        heads * model.mla.v_head_dim, ffn})
                     : common_multiple({hidden, heads * model.head_dim, ffn});
  return {.dense = dense,
          .expert = common_multiple({model.hidden, div_ceil(model.moe.expert_ffn, plan.etp)})};
}

std::int64_t FsdpBuffers::parameter_bytes(BucketRange range) const {
  std::int64_t bytes = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { bytes += buckets[i].parameter_bytes; }
  return bytes;
}

std::int64_t FsdpBuffers::gradient_bytes(BucketRange range) const {
  std::int64_t bytes = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { bytes += buckets[i].gradient_bytes; }
  return bytes;
}

std::int64_t FsdpBuffers::forward_bytes(std::size_t unit) const {
  return empty() ? 0 : parameter_bytes(units[unit].gathered_forward);
}

std::int64_t FsdpBuffers::replay_bytes(std::size_t unit) const {
  return empty() ? 0
                 : parameter_bytes(units[unit].gathered_replay) +
                       gradient_bytes(units[unit].gradients_replay) + units[unit].held_bytes;
}

std::int64_t FsdpBuffers::backward_bytes(std::size_t unit) const {
  return empty() ? 0
                 : parameter_bytes(units[unit].gathered_backward) +
                       gradient_bytes(units[unit].gradients_backward) + units[unit].held_bytes;
}

// Embedding, final norm and head are one group, cut where a bucket is large enough: embedding and
// head part only if the embedding is. A tied table has one gradient, which the embedding completes:
// fused, the head writes it into the bucket, else autograd keeps it.
HeadBucket head_bucket(const Job& job, const Plan& plan) {
  if (!is_megatron_fsdp(job, plan) || dense_shard_size(job, plan) == 1 ||
      has_one_bucket(job, plan)) {
    return {};
  }
  const bool tied = job.model.tied_embeddings;
  const std::int64_t head = elements_of(job, plan, head_parameters(job.model));
  const std::int64_t table = elements_of(job, plan, table_parameters(job.model));
  if (plan.pp > 1) {
    const bool has_copy = tied || job.model.num_mtp_layers > 0;
    return {.elements = padded_ends(job, plan, head + (has_copy ? table : 0))};
  }
  const std::int64_t embedding = elements_of(job, plan, embedding_parameters(job.model));
  const std::int64_t smallest = smallest_bucket(job, plan);
  const bool fused = job.profile.gradient_accumulation_fusion;
  if (plan.zero >= 3 && (smallest == 0 || table < smallest)) {
    return {.elements = padded_ends(job, plan, head + embedding),
            .born = tied && !fused ? Step::kBackwardInput : Step::kBackwardLogits,
            .is_held = true};
  }
  if (tied && fused) {
    return {.elements = padded_ends(job, plan, head + embedding), .is_held = true};
  }
  return {.elements = padded_ends(job, plan, head),
          .born = tied ? Step::kBackwardInput : Step::kBackwardLogits};
}

FsdpBuffers fsdp_buffers(const Job& job, const Plan& plan, const ChunkLayout& layout) {
  if (!is_megatron_fsdp(job, plan)) {
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
  const bool holds = head.is_held && chunk.units.back().is_head;
  for (std::size_t i = 0; holds && i < buffers.units.size(); ++i) {
    buffers.units[i].held_bytes =
        chunk.units[i].is_head ? 0 : BucketMaker(job, plan).make_end(head.elements).gradient_bytes;
  }
  return buffers;
}

}  // namespace shardplan
