// A plan's price from memoised pieces: block summaries and times by the block axes, state by layout
// and sharding, peaks of chunks, schedule states. The same functions write estimate_memory's rows.
#include "estimator/price.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "estimator/block_time.h"
#include "estimator/estimate.h"
#include "estimator/outside_memory.h"
#include "estimator/stage_memory.h"

namespace shardplan {
namespace {

// Integers that a piece depends on, and their hash.
template <std::size_t kSize>
struct Key {
  std::array<std::int64_t, kSize> values{};
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  template <std::size_t kSize>
  std::size_t operator()(const Key<kSize>& key) const {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits
    for (const std::int64_t value : key.values) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3;
      hash ^= hash >> 29;
    }
    return static_cast<std::size_t>(hash);
  }
};

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

std::int64_t recompute_number(const Recompute& recompute) {
  std::int64_t bits = 0;
  for (const auto& module : kRecomputeModules) {
    bits = 2 * bits + (recompute.modules.*module.value ? 1 : 0);
  }
  return (bits * 4 + number(recompute.granularity)) * 2 + number(recompute.method);
}

// torchtitan's blocks and states see more of a plan: the recompute policy, its sharding, and
// whether a pipeline delays the reduction of gradients.
struct TitanAxes {
  std::int64_t policy = 0;
  std::int64_t sharding = 0;
};
TitanAxes titan_axes(const Job& job, const Plan& plan) {
  if (job.profile.memory_model != MemoryModel::kTorchtitan) {
    return {};
  }
  const bool by_layer = plan.recompute.policy == "every_second_layer";
  const bool by_matmul = plan.recompute.policy == "every_second_matmul";
  const std::int64_t policy = by_layer ? 1 : by_matmul ? 2 : 0;
  return {.policy = 4 * policy + number(plan.recompute.granularity),
          .sharding = 8 * dense_shard_size(job, plan) + 2 * plan.zero + (plan.pp > 1 ? 1 : 0)};
}

// Everything but the number of layers in a recompute group, which only the layout sees.
using BlockKey = Key<13>;
BlockKey block_key(const Job& job, const Plan& plan) {
  const TitanAxes titan = titan_axes(job, plan);
  return {{plan.tp, plan.cp, number(plan.cp_method), plan.ep, plan.etp, plan.micro_batch,
           plan.sequence_parallel ? 1 : 0, recompute_number(plan.recompute), number(plan.precision),
           std::bit_cast<std::int64_t>(plan.moe_buffer_factor),
           delays_weight_gradients(plan.schedule) ? 1 : 0, titan.policy, titan.sharding}};
}

using TimesKey = Key<14>;
TimesKey times_key(const Plan& plan) {
  std::int64_t order = 0;
  for (const Dimension dimension : plan.rank_order) { order = 4 * order + number(dimension); }
  return {{plan.tp, plan.cp, number(plan.cp_method), plan.ep, plan.etp, plan.micro_batch,
           plan.sequence_parallel ? 1 : 0, recompute_number(plan.recompute),
           plan.recompute.num_layers, number(plan.precision),
           std::bit_cast<std::int64_t>(plan.moe_buffer_factor), order, plan.pp,
           number(plan.schedule)}};
}

using LayoutKey = Key<7>;
using StateKey = Key<16>;
using ScheduleKey = Key<4>;

}  // namespace

struct PriceTable::Pieces {
  struct StageParts {
    StateBytes state;
    StageEnds ends;
  };

  Job job;
  std::map<std::vector<std::int64_t>, std::int64_t> splits;  // layers_per_chunk -> number
  std::unordered_map<BlockKey, BlockSet, KeyHash> blocks;
  std::unordered_map<TimesKey, ModelTimes, KeyHash> times;
  std::unordered_map<LayoutKey, std::vector<StageLayout>, KeyHash> layouts;
  std::unordered_map<StateKey, std::vector<StageParts>, KeyHash> states;
  std::unordered_map<Key<20>, std::vector<std::vector<ChunkPeaks>>, KeyHash> chunks;
  std::unordered_map<ScheduleKey, std::vector<std::vector<InFlightState>>, KeyHash> schedules;

  LayoutKey layout_key(const Plan& plan) {
    std::int64_t split = 0;
    if (!plan.layers_per_chunk.empty()) {
      split = splits.try_emplace(plan.layers_per_chunk, std::ssize(splits) + 1).first->second;
    }
    const bool full = plan.recompute.granularity == RecomputeGranularity::kFull;
    return {{plan.pp, plan.vpp, plan.schedule == Schedule::kZbv ? 1 : 0, split,
             full ? 1 + number(plan.recompute.method) : 0, full ? plan.recompute.num_layers : 0,
             titan_axes(job, plan).policy}};
  }

  const std::vector<StageLayout>& layouts_of(const Plan& plan, const LayoutKey& key) {
    const auto [entry, is_new] = layouts.try_emplace(key);
    if (is_new) {
      const LayerPartition partition = partition_layers(job, plan);
      for (std::int64_t pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
        entry->second.push_back(stage_layout(job, plan, partition, pp_rank));
      }
    }
    return entry->second;
  }

  const BlockSet& blocks_of(const Plan& plan, const BlockKey& key) {
    const auto [entry, is_new] = blocks.try_emplace(key);
    if (is_new) {
      entry->second = block_set(job, plan);
    }
    return entry->second;
  }

  const std::vector<StageParts>& states_of(const Plan& plan, const LayoutKey& layout) {
    const StateKey key{
        {layout.values[0], layout.values[1], layout.values[2], layout.values[3], plan.tp, plan.ep,
         plan.etp, dense_shard_size(job, plan), expert_shard_size(job, plan), plan.zero,
         number(plan.precision), number(plan.grad_dtype),
         number(plan.master_dtype) * 16 + number(plan.exp_avg_dtype), number(plan.exp_avg_sq_dtype),
         std::bit_cast<std::int64_t>(plan.offload.optimizer), titan_axes(job, plan).policy}};
    const auto [entry, is_new] = states.try_emplace(key);
    if (is_new) {
      for (const StageLayout& stage : layouts_of(plan, layout)) {
        entry->second.push_back({.state = stage_state(job, plan, stage).bytes, .ends = stage.ends});
      }
    }
    return entry->second;
  }

  const std::vector<std::vector<ChunkPeaks>>& chunks_of(const Plan& plan, const LayoutKey& layout) {
    const BlockKey block = block_key(job, plan);
    Key<20> key;
    std::ranges::copy(layout.values, key.values.begin());
    std::ranges::copy(block.values, key.values.begin() + std::ssize(layout.values));
    const auto [entry, is_new] = chunks.try_emplace(key);
    if (is_new) {
      const BlockSummaries set = summaries_of(blocks_of(plan, block));
      for (const StageLayout& stage : layouts_of(plan, layout)) {
        entry->second.emplace_back();
        for (const ChunkLayout& chunk : stage.chunks) {
          entry->second.back().push_back(chunk_peaks(chunk, set));
        }
      }
    }
    return entry->second;
  }

  const std::vector<std::vector<InFlightState>>& schedules_of(const Plan& plan) {
    const ScheduleShape shape = schedule_shape(job, plan);
    const ScheduleKey key{{number(shape.schedule), shape.pp, shape.vpp, shape.num_microbatches}};
    const auto [entry, is_new] = schedules.try_emplace(key);
    if (is_new) {
      for (std::int64_t pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
        entry->second.push_back(peak_in_flight_states(shape, pp_rank));
      }
    }
    return entry->second;
  }

  const ModelTimes& times_of(const Plan& plan) {
    const auto [entry, is_new] = times.try_emplace(times_key(plan));
    if (is_new) {
      entry->second = model_times(job, plan);
    }
    return entry->second;
  }
};

namespace {

Price fujii_price(const Job& job, const Plan& plan) {
  const MemoryEstimate estimate = estimate_memory(job, plan);
  const StageMemory& worst = estimate.stages.front();
  Price price;
  price.allocated_bytes = worst.allocated_bytes;
  price.allocated_stage = worst.pp_rank;
  price.device_used_bytes = worst.device_used_bytes;
  return price;
}

}  // namespace

PriceTable::PriceTable(const Job& job) : pieces_(std::make_unique<Pieces>()) {
  pieces_->job = job;
}
PriceTable::~PriceTable() = default;
PriceTable::PriceTable(PriceTable&&) noexcept = default;
PriceTable& PriceTable::operator=(PriceTable&&) noexcept = default;

const Job& PriceTable::job() const {
  return pieces_->job;
}

PriceTable build_price_table(const Job& job) {
  return PriceTable(job);
}

Price price(PriceTable& table, const Plan& plan) {
  PriceTable::Pieces& pieces = *table.pieces_;
  const Job& job = pieces.job;
  Price price;
  if (job.profile.memory_model == MemoryModel::kFujii2024) {
    price = fujii_price(job, plan);
  } else {
    const LayoutKey layout = pieces.layout_key(plan);
    const auto& states = pieces.states_of(plan, layout);
    const auto& chunks = pieces.chunks_of(plan, layout);
    const auto& schedules = pieces.schedules_of(plan);
    price.allocated_bytes = -1;
    for (std::int64_t pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
      const std::size_t stage = static_cast<std::size_t>(pp_rank);
      StateBytes state = states[stage].state;
      for (const StateRow& row : sequence_rows(job, plan, states[stage].ends)) { state.add(row); }
      const std::int64_t allocated =
          stage_peaks(job, state, chunks[stage], schedules[stage]).allocated_bytes;
      if (allocated > price.allocated_bytes) {
        price.allocated_bytes = allocated;
        price.allocated_stage = pp_rank;
      }
      price.device_used_bytes = std::max(
          price.device_used_bytes, reserved_upper_bytes(job.profile.allocator, state, allocated) +
                                       outside_bytes(job, plan, pp_rank));
    }
  }
  const StepTime time = estimate_step_time(job, plan);
  price.step_time_s = time.total_s;
  price.tokens_per_s_per_gpu = time.tokens_per_s_per_gpu;
  return price;
}

}  // namespace shardplan
