#include "estimator/megatron_fsdp.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "estimator/block_rows.h"
#include "estimator/layer_partition.h"
#include "estimator/number.h"
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

// A bucket ends where every row of its weights and every rank's part does
// (build_data_parallel_buffer_index).
std::int64_t padded(std::int64_t elements, std::int64_t shard, std::int64_t row) {
  return round_up(elements, shard * row);
}

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

  // ZeRO-3: the parameters of a layer that share their ranks.
  std::vector<FsdpBucket> of_layer(BlockKind kind) const {
    const LocalParameters local = block_parameters(job_, plan_, kind);
    const RowMultiples rows = row_multiples(job_, plan_, kind);
    std::vector<FsdpBucket> buckets;
    if (local.dense > 0) {
      buckets.push_back(make(padded(local.dense, dense_shard_, rows.dense), dense_shard_));
    }
    if (local.expert > 0) {
      buckets.push_back(make(padded(local.expert, expert_shard_, rows.expert), expert_shard_));
    }
    return buckets;
  }

  std::vector<WeightShape> dense_weights(BlockKind kind) const {
    std::vector<WeightShape> weights = weight_shapes(job_, plan_, kind);
    if (block_parameters(job_, plan_, kind).expert > 0) {
      const std::vector<WeightShape> experts = expert_weight_shapes(job_, plan_);
      std::erase_if(weights, [&](const WeightShape& shape) {
        return std::ranges::find(experts, shape) != experts.end();
      });
    }
    return weights;
  }

  std::int64_t dense_shard() const { return dense_shard_; }
  std::int64_t expert_shard() const { return expert_shard_; }

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

// Units of the chunk whose parameters a bucket has.
struct UnitSpan {
  std::size_t first = 0;
  std::size_t last = 0;
};

// A unit of the chunk as its buckets, front to back.
struct PlacedUnit {
  std::vector<BucketRange> layers;  // ZeRO-3
  bool is_head = false;
  bool is_embedding = false;
};

struct PlacedChunk {
  std::vector<FsdpBucket> buckets;  // in model order
  std::vector<UnitSpan> spans;      // of each
  std::vector<PlacedUnit> units;
  BucketRange layers;               // buckets of layers
  std::int64_t unit_elements = 0;   // of a layer on average, without padding
  std::int64_t front_elements = 0;  // between the embedding's bucket and the layers': the head's
  bool gathers_front = false;       // the head's bucket stands in front of the layers'

  void add(const FsdpBucket& bucket, UnitSpan span) {
    buckets.push_back(bucket);
    spans.push_back(span);
  }
};

std::int64_t sum_elements(std::span<const FsdpBucket> buckets, BucketRange range) {
  std::int64_t elements = 0;
  for (std::size_t i = range.first; i < range.last; ++i) { elements += buckets[i].elements; }
  return elements;
}

// ZeRO-2 knows no layers: parameters fill buckets one after the other, experts' their own. Norms
// and routers count to the weight in front of them.
class BucketCutter {
 public:
  BucketCutter(const Job& job, const Plan& plan, const BucketMaker& maker, PlacedChunk& chunk)
      : job_(job), plan_(plan), maker_(maker), chunk_(chunk) {}
  void add_layer(BlockKind kind, std::size_t unit) {
    const LocalParameters local = block_parameters(job_, plan_, kind);
    const RowMultiples rows = row_multiples(job_, plan_, kind);
    cut(dense_, local.dense, {maker_.dense_shard(), rows.dense, unit}, maker_.dense_weights(kind));
    cut(expert_, local.expert, {maker_.expert_shard(), rows.expert, unit},
        local.expert > 0 ? expert_weight_shapes(job_, plan_) : std::vector<WeightShape>{});
  }

 private:
  struct Open {
    std::int64_t elements = 0;
    std::size_t bucket = 0;
  };

  struct Where {
    std::int64_t shard = 1;
    std::int64_t row = 1;
    std::size_t unit = 0;
  };

  void cut(Open& open, std::int64_t elements, const Where& where,
           const std::vector<WeightShape>& weights) {
    for (const WeightShape& weight : weights) {
      for (std::int64_t i = 0; i < weight.count; ++i) {
        const bool is_last = &weight == &weights.back() && i + 1 == weight.count;
        const std::int64_t own = is_last ? elements : weight.rows * weight.columns;
        elements -= own;
        fill(open, own, where);
      }
    }
  }
  void fill(Open& open, std::int64_t elements, const Where& where) {
    if (open.elements == 0) {
      open.bucket = chunk_.buckets.size();
      chunk_.add({}, {where.unit, where.unit});
    }
    open.elements += elements;
    chunk_.buckets[open.bucket] =
        maker_.make(padded(open.elements, where.shard, where.row), where.shard);
    chunk_.spans[open.bucket].last = where.unit;
    if (open.elements >= smallest_bucket(job_, plan_)) {
      open.elements = 0;
    }
  }

  const Job& job_;
  const Plan& plan_;
  const BucketMaker& maker_;
  PlacedChunk& chunk_;
  Open dense_;
  Open expert_;
};

using BucketsOfKind = std::array<std::vector<FsdpBucket>, kNumBlockKinds>;

// Of the kinds of layers that are there.
BucketsOfKind buckets_of_kinds(const BucketMaker& maker, const ChunkLayout& layout) {
  BucketsOfKind kinds;
  for (const Unit& unit : layout.units) {
    for (const BlockRun& run : unit.blocks) {
      std::vector<FsdpBucket>& buckets = kinds[static_cast<std::size_t>(run.kind)];
      if (is_layer(run.kind) && buckets.empty()) {
        buckets = maker.of_layer(run.kind);
      }
    }
  }
  return kinds;
}

// `kinds`: under ZeRO-3.
PlacedUnit placed_unit(const BucketsOfKind* kinds, const Unit& unit, BucketCutter& cutter,
                       PlacedChunk& chunk) {
  const BlockKind first = unit.blocks.front().kind;
  const std::size_t number = chunk.units.size();
  PlacedUnit placed{.layers = {},
                    .is_head = first == BlockKind::kHead,
                    .is_embedding = first == BlockKind::kEmbedding};
  for (const BlockRun& run : unit.blocks) {
    for (std::int64_t i = 0; is_layer(run.kind) && i < run.count; ++i) {
      if (kinds == nullptr) {
        cutter.add_layer(run.kind, number);
        continue;
      }
      const std::size_t before = chunk.buckets.size();
      for (const FsdpBucket& bucket : (*kinds)[static_cast<std::size_t>(run.kind)]) {
        chunk.add(bucket, {number, number});
      }
      placed.layers.push_back({before, chunk.buckets.size()});
    }
  }
  return placed;
}

// Elements of a layer on average.
std::int64_t unit_elements(const Job& job, const Plan& plan, const ChunkLayout& layout) {
  std::int64_t elements = 0;
  std::int64_t num_layers = 0;
  for (const Unit& unit : layout.units) {
    for (const BlockRun& run : unit.blocks) {
      if (is_layer(run.kind)) {
        elements += unit.count * run.count * block_parameters(job, plan, run.kind).total();
        num_layers += unit.count * run.count;
      }
    }
  }
  return elements / std::max<std::int64_t>(num_layers, 1);
}

// Parameters outside layers are one group, whose buckets stand where its first one does
// (_get_parameter_groups): in front of the layers', the head's too, where there is an embedding.
PlacedChunk place_chunk(const Job& job, const Plan& plan, const ChunkLayout& layout,
                        const HeadBucket& head) {
  const BucketMaker maker(job, plan);
  PlacedChunk chunk;
  const auto has = [&](BlockKind kind) {
    return std::ranges::any_of(layout.units,
                               [&](const Unit& unit) { return unit.blocks.front().kind == kind; });
  };
  const bool has_head = has(BlockKind::kHead);
  const bool has_embedding = has(BlockKind::kEmbedding);
  // A bucket that waits for the embedding's gradients holds those, too.
  if (has_embedding && !(has_head && head.is_held)) {
    chunk.add(maker.make_end(
                  padded_ends(job, plan, elements_of(job, plan, embedding_parameters(job.model)))),
              {});
  }
  chunk.gathers_front = has_embedding && has_head;
  chunk.front_elements = chunk.gathers_front && !head.is_held ? head.elements : 0;
  chunk.unit_elements = unit_elements(job, plan, layout);
  chunk.layers.first = chunk.buckets.size();
  BucketCutter cutter(job, plan, maker, chunk);
  const BucketsOfKind kinds = plan.zero >= 3 ? buckets_of_kinds(maker, layout) : BucketsOfKind{};
  for (const Unit& unit : layout.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      chunk.units.push_back(placed_unit(plan.zero >= 3 ? &kinds : nullptr, unit, cutter, chunk));
    }
  }
  chunk.layers.last = chunk.buckets.size();
  if (has_head && !head.is_held) {
    chunk.add(maker.make_end(head.elements), {chunk.units.size() - 1, chunk.units.size() - 1});
  }
  return chunk;
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

// ZeRO-2 without overlapped reduction: one bucket of all gradients.
bool has_one_bucket(const Job& job, const Plan& plan) {
  return plan.zero < 3 && smallest_bucket(job, plan) == 0;
}

// Elements of a chunk whose gradients are divided.
LocalParameters divided_elements(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  LocalParameters all;
  for (const Unit& unit : chunk.units) {
    for (const BlockRun& run : unit.blocks) {
      const LocalParameters local = block_parameters(job, plan, run.kind);
      all.dense += unit.count * run.count * local.dense;
      all.expert += unit.count * run.count * local.expert;
    }
  }
  all.dense += chunk.has_embedding_copy ? elements_of(job, plan, table_parameters(job.model)) : 0;
  return {.dense = dense_shard_size(job, plan) > 1 ? all.dense : 0,
          .expert = expert_state_shards(job, plan) > 1 ? all.expert : 0};
}

// Of a tied table: the head's part, which autograd keeps until it can add the embedding's.
std::int64_t tied_gradient_bytes(const Job& job, const Plan& plan) {
  return holds_tied_gradient(job, plan) ? elements_of(job, plan, table_parameters(job.model)) *
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

bool fuses_weight_gradients(const Job& job, const Plan& plan) {
  return job.profile.gradient_accumulation_fusion &&
         (!is_megatron_fsdp(job, plan) ||
          fsdp_gradient_dtype(plan) == activation_dtype(plan.precision));
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

bool holds_tied_gradient(const Job& job, const Plan& plan) {
  return job.model.tied_embeddings && plan.pp == 1 && is_megatron_fsdp(job, plan) &&
         !fuses_weight_gradients(job, plan);
}

// Embedding, final norm and head are one group, cut where a bucket is large enough: embedding and
// head part only if the embedding is. A tied table has one gradient, which the embedding completes:
// fused, the head writes it into the bucket, else autograd keeps it, and the final norm's is first.
// A gradient that is not fused is made beside the logits' and copied when these are gone.
HeadBucket head_bucket(const Job& job, const Plan& plan) {
  if (!is_megatron_fsdp(job, plan) || dense_shard_size(job, plan) == 1) {
    return {};
  }
  const Step born = holds_tied_gradient(job, plan)      ? Step::kBackwardInput
                    : fuses_weight_gradients(job, plan) ? Step::kBackwardLogits
                                                        : Step::kBackwardNorm;
  if (has_one_bucket(job, plan)) {
    const StageLayout stage = stage_layout(job, plan, partition_layers(job, plan), plan.pp - 1);
    return {.elements = divided_elements(job, plan, stage.chunks.back()).dense, .born = born};
  }
  const bool tied = job.model.tied_embeddings;
  const std::int64_t head = elements_of(job, plan, head_parameters(job.model));
  const std::int64_t table = elements_of(job, plan, table_parameters(job.model));
  if (plan.pp > 1) {
    const bool has_copy = tied || job.model.num_mtp_layers > 0;
    return {.elements = padded_ends(job, plan, head + (has_copy ? table : 0)), .born = born};
  }
  const std::int64_t embedding = elements_of(job, plan, embedding_parameters(job.model));
  const std::int64_t smallest = smallest_bucket(job, plan);
  const bool is_held = (plan.zero >= 3 && (smallest == 0 || table < smallest)) ||
                       (tied && fuses_weight_gradients(job, plan));
  return {.elements = padded_ends(job, plan, head + (is_held ? embedding : 0)),
          .born = born,
          .is_held = is_held};
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
        (head.is_held ? BucketMaker(job, plan).make_end(head.elements).gradient_bytes : 0) +
        tied_gradient_bytes(job, plan);
    for (std::size_t i = 0; i + 1 < buffers.units.size(); ++i) {
      buffers.units[i].held_bytes = held;
    }
  }
  return buffers;
}

FsdpShares fsdp_shares(const Job& job, const Plan& plan, std::int64_t held) {
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
  const std::int64_t ahead = div_ceil(capacity_of(job, 2 * unit) / 2, unit);
  const double first = number(unit) / number(held);
  const double all = std::min(1.0, first * number(layers) / number(plan.pp));
  return {.layers = all,
          .first = std::min(all, first),
          .ahead = std::min(all, first * number(1 + ahead))};
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
  const std::int64_t embedding = elements_of(job, plan, embedding_parameters(job.model));
  const std::int64_t ends =
      chunk.gathers_front && head.is_held ? head.elements : embedding + chunk.front_elements;
  return ends * bytes_of(activation_dtype(plan.precision)) +
         buffers.parameter_bytes(gathered_by_embedding(chunk, prefetch));
}

}  // namespace shardplan
