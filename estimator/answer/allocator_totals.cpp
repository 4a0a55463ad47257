#include "estimator/answer/allocator_totals.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "estimator/answer/estimate_memory.h"
#include "estimator/answer/outside_memory.h"
#include "estimator/answer/stage_timeline.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/capacity.h"
#include "estimator/plan/expert_loads.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

// What an allocator needs beyond the tensors, in millionths of them.
struct Overhead {
  std::int64_t reserved_ppm = 0;
  std::int64_t required_ppm = 0;
};

// A rank of a stage whose timeline has been replayed.
struct PlayedRank {
  RankTensors tensors;
  std::int64_t num_events = 0;
};

// extra / allocated in millionths, rounded up, without overflow for any memory size.
std::int64_t millionths(std::int64_t extra_bytes, std::int64_t allocated_bytes) {
  return div_ceil(extra_bytes, std::max<std::int64_t>(allocated_bytes / kMillion, 1));
}

void set_totals(StageMemory& stage, std::int64_t reserved_bytes, std::int64_t required_bytes) {
  stage.required_bytes = std::max(required_bytes, stage.allocated_bytes);
  stage.reserved_bytes = std::max(reserved_bytes, stage.required_bytes);
  stage.device_used_bytes = stage.reserved_bytes + stage.outside_bytes;
}

// Ranks beside the first, with shares of a sharded optimizer or loads of their own: their tensors
// have other sizes, and which cached segment one takes decides what is reserved. The last one
// first.
std::vector<std::int64_t> other_ranks(const Job& job, const Plan& plan) {
  constexpr std::int64_t kMost = 8;
  const Framework& framework = framework_of(job.profile);
  const bool is_sharded = framework.tells_shards != nullptr && framework.tells_shards(plan);
  const std::int64_t shards = is_sharded ? dense_shard_size(job, plan) : 1;
  const std::int64_t loads = load_spread(job, plan) > 0 ? plan.ep : 1;
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = std::max(shards, loads) - 1; rank > 0 && std::ssize(ranks) < kMost;
       --rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

void replay_stages(const Job& job, const Plan& plan, const PlanPieces& pieces,
                   std::vector<StageMemory>& stages) {
  if (job.profile.allocator == AllocatorKind::kStaticArenas) {
    return;
  }
  const std::int64_t max_events = framework_of(job.profile).most_events;
  std::vector<std::size_t> order(stages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) {
    return stages[i].allocated_bytes + stages[i].outside_bytes;
  });
  Overhead worst;
  std::int64_t events = 0;
  std::vector<std::vector<PlayedRank>> played(stages.size());
  // Ranks that allocate what another one has played reserve what that does.
  const auto play = [&](std::size_t i, std::int64_t rank,
                        std::int64_t enough_bytes) -> std::optional<AllocatorPeaks> {
    RankTensors tensors = rank_tensors(job, plan, pieces.stages[i], rank);
    const auto same = std::ranges::find(played[i], tensors, &PlayedRank::tensors);
    if (same != played[i].end()) {
      events += same->num_events;
      return std::nullopt;
    }
    const std::vector<AllocationEvent> timeline =
        stage_timeline(job, plan, pieces.blocks, pieces.stages[i], tensors);
    played[i].push_back({.tensors = std::move(tensors), .num_events = std::ssize(timeline)});
    events += std::ssize(timeline);
    return replay_allocator(timeline, job.profile.allocator, enough_bytes);
  };
  for (const std::size_t i : order) {
    StageMemory& stage = stages[i];
    if (events < max_events) {
      const AllocatorPeaks peaks = play(i, 0, 0).value();
      set_totals(stage, peaks.reserved_bytes, peaks.required_bytes);
      const std::int64_t allocated = stage.allocated_bytes;
      worst.reserved_ppm =
          std::max(worst.reserved_ppm, millionths(stage.reserved_bytes - allocated, allocated));
      worst.required_ppm =
          std::max(worst.required_ppm, millionths(stage.required_bytes - allocated, allocated));
    } else {
      const std::int64_t part = div_ceil(stage.allocated_bytes, kMillion);
      set_totals(stage, stage.allocated_bytes + part * worst.reserved_ppm,
                 stage.allocated_bytes + part * worst.required_ppm);
    }
  }
  if (pieces.data_rank) {
    return;
  }
  for (const std::int64_t rank : other_ranks(job, plan)) {
    for (const std::size_t i : order) {
      if (events >= max_events) {
        return;
      }
      if (const auto peaks = play(i, rank, stages[i].required_bytes)) {
        set_totals(stages[i], std::max(stages[i].reserved_bytes, peaks->reserved_bytes),
                   std::max(stages[i].required_bytes, peaks->required_bytes));
      }
    }
  }
}

Fit fit_of(const Job& job, const std::vector<StageMemory>& stages) {
  const std::int64_t capacity = card_bytes(job);
  Fit fit = Fit::kFits;
  for (const StageMemory& stage : stages) {
    if (stage.required_bytes + stage.outside_bytes > capacity) {
      return Fit::kDoesNotFit;
    }
    fit = stage.device_used_bytes > capacity ? Fit::kTight : fit;
  }
  return fit;
}

namespace {

CapacityOutcome outcome_of(std::vector<AllocationEvent> events, AllocatorKind allocator,
                           std::int64_t capacity_bytes, std::vector<PlayedTimeline>& played) {
  const auto known = std::ranges::find_if(played, [&](const PlayedTimeline& one) {
    return one.allocator == allocator && one.replay.from_bytes <= capacity_bytes &&
           capacity_bytes < one.replay.below_bytes && one.events == events;
  });
  if (known != played.end()) {
    return known->replay.outcome;
  }
  const CapacityReplay replay = replay_at_capacity(events, allocator, capacity_bytes);
  played.push_back({.events = std::move(events), .allocator = allocator, .replay = replay});
  return replay.outcome;
}

}  // namespace

Fit fit_of_plan(const Job& job, const Plan& plan, std::vector<PlayedTimeline>& played) {
  const std::int64_t capacity = device_capacity_bytes(job.cluster);
  const PlanPieces pieces = plan_pieces(job, plan);
  const StagePieces* fullest = nullptr;
  std::int64_t fullest_bytes = 0;
  bool is_open = false;
  for (const StagePieces& stage : pieces.stages) {
    const std::int64_t outside = outside_bytes(job, plan, stage.layout.pp_rank);
    const std::int64_t allocated = stage.peaks.allocated_bytes;
    if (allocated + outside > capacity) {
      return Fit::kDoesNotFit;
    }
    const std::int64_t upper =
        reserved_upper_bytes(job.profile.allocator, {stage.state.bytes, {}}, allocated);
    is_open = is_open || upper + outside > capacity;
    if (allocated + outside > fullest_bytes) {
      fullest = &stage;
      fullest_bytes = allocated + outside;
    }
  }
  if (!is_open) {
    return Fit::kFits;
  }
  const std::int64_t outside = outside_bytes(job, plan, fullest->layout.pp_rank);
  switch (outcome_of(stage_timeline(job, plan, pieces.blocks, *fullest), job.profile.allocator,
                     capacity - outside, played)) {
    case CapacityOutcome::kPlentiful: return Fit::kFits;
    case CapacityOutcome::kReleases: return Fit::kTight;
    case CapacityOutcome::kFails: return Fit::kDoesNotFit;
  }
  return Fit::kDoesNotFit;
}

}  // namespace shardplan
