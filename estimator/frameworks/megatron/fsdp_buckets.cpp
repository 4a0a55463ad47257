#include "estimator/frameworks/megatron/fsdp_buckets.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan::megatron {
namespace {

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
      const std::int64_t layer = before == 0 ? 0 : chunk.layer_of.back() + 1;
      for (const FsdpBucket& bucket : (*kinds)[static_cast<std::size_t>(run.kind)]) {
        chunk.add(bucket, {number, number}, layer);
      }
      placed.layers.push_back({before, chunk.buckets.size()});
    }
  }
  return placed;
}

// Buckets of every layer, in model order.
std::vector<BucketRange> ranges_of_layers(const PlacedChunk& chunk) {
  std::vector<BucketRange> ranges;
  for (const PlacedUnit& unit : chunk.units) {
    ranges.insert(ranges.end(), unit.layers.begin(), unit.layers.end());
  }
  return ranges;
}

bool are_alike(const PlacedChunk& chunk, BucketRange one, BucketRange other) {
  const auto bucket = [&](std::size_t i) {
    return chunk.buckets.begin() + static_cast<std::ptrdiff_t>(i);
  };
  return std::ranges::equal(bucket(one.first), bucket(one.last), bucket(other.first),
                            bucket(other.last), {}, &FsdpBucket::elements, &FsdpBucket::elements);
}

// FixedPoolAllocator: of kinds with as many layers the first. A chunk of one layer never asks for
// the second buffer.
void put_into_pool(PlacedChunk& chunk) {
  const std::vector<BucketRange> layers = ranges_of_layers(chunk);
  std::ptrdiff_t most = 0;
  BucketRange kind;
  for (const BucketRange layer : layers) {
    const std::ptrdiff_t alike = std::ranges::count_if(
        layers, [&](BucketRange other) { return are_alike(chunk, layer, other); });
    if (alike > most) {
      most = alike;
      kind = layer;
    }
  }
  const std::int64_t buffers = std::min<std::int64_t>(2, most);
  for (std::size_t i = kind.first; i < kind.last; ++i) {
    chunk.pool.elements += buffers * chunk.buckets[i].elements;
    chunk.pool.parameter_bytes += buffers * chunk.buckets[i].parameter_bytes;
    chunk.pool.gradient_bytes += buffers * chunk.buckets[i].gradient_bytes;
  }
  const PlacedChunk whole = chunk;
  for (const BucketRange layer : layers) {
    const bool is_of_kind = are_alike(whole, layer, kind);
    chunk.is_pooled.push_back(is_of_kind);
    for (std::size_t i = layer.first; is_of_kind && i < layer.last; ++i) {
      chunk.buckets[i].parameter_bytes = 0;
      chunk.buckets[i].gradient_bytes = 0;
    }
  }
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

}  // namespace

std::int64_t smallest_bucket(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSmallest = 40'000'000;
  constexpr std::int64_t kPerRank = 1'000'000;
  return job.profile.overlap_grad_reduce
             ? std::max(kSmallest, kPerRank * data_parallel_size(job, plan) * plan.cp)
             : 0;
}

bool has_one_bucket(const Job& job, const Plan& plan) {
  return plan.zero < 3 && smallest_bucket(job, plan) == 0;
}

LocalParameters divided_elements(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  LocalParameters all;
  for (const Unit& unit : chunk.units) {
    for (const BlockRun& run : unit.blocks) {
      const LocalParameters local = block_parameters(job, plan, run.kind);
      all.dense += unit.count * run.count * local.dense;
      all.expert += unit.count * run.count * local.expert;
    }
  }
  all.dense +=
      chunk.has_embedding_copy ? local_elements(job, plan, table_parameters(job.model)) : 0;
  return {.dense = dense_shard_size(job, plan) > 1 ? all.dense : 0,
          .expert = expert_state_shards(job, plan) > 1 ? all.expert : 0};
}

FsdpBucket end_bucket(const Job& job, const Plan& plan, std::int64_t elements) {
  return BucketMaker(job, plan).make_end(elements);
}

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
    chunk.add(maker.make_end(padded_ends(
                  job, plan, local_elements(job, plan, embedding_parameters(job.model)))),
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
  if (has_double_buffers(job) && plan.zero >= 3) {
    put_into_pool(chunk);
  }
  return chunk;
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
  const std::int64_t head = local_elements(job, plan, head_parameters(job.model));
  const std::int64_t table = local_elements(job, plan, table_parameters(job.model));
  if (plan.pp > 1) {
    const bool has_copy = tied || job.model.num_mtp_layers > 0;
    return {.elements = padded_ends(job, plan, head + (has_copy ? table : 0)), .born = born};
  }
  const std::int64_t embedding = local_elements(job, plan, embedding_parameters(job.model));
  const std::int64_t smallest = smallest_bucket(job, plan);
  const bool is_held = (plan.zero >= 3 && (smallest == 0 || table < smallest)) ||
                       (tied && fuses_weight_gradients(job, plan));
  return {.elements = padded_ends(job, plan, head + (is_held ? embedding : 0)),
          .born = born,
          .is_held = is_held};
}

}  // namespace shardplan::megatron
