#include "estimator/allocator_totals.h"

#include <algorithm>
#include <numeric>

#include "estimator/estimate.h"
#include "estimator/outside_memory.h"
#include "estimator/stage_timeline.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

// What an allocator needs beyond the tensors, in millionths of them.
struct Overhead {
  std::int64_t reserved_ppm = 0;
  std::int64_t required_ppm = 0;
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

AllocatorPeaks replay_stage(const Job& job, const Plan& plan, const BlockSet& blocks,
                            const StagePieces& stage) {
  return replay_allocator(stage_timeline(job, plan, blocks, stage), job.profile.allocator);
}

}  // namespace

void replay_stages(const Job& job, const Plan& plan, const PlanPieces& pieces,
                   std::vector<StageMemory>& stages) {
  if (job.profile.allocator == AllocatorKind::kStaticArenas) {
    return;
  }
  constexpr std::int64_t kMaxEvents = 24'000;  // about 10 ms
  std::vector<std::size_t> order(stages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) {
    return stages[i].allocated_bytes + stages[i].outside_bytes;
  });
  Overhead worst;
  std::int64_t events = 0;
  for (const std::size_t i : order) {
    StageMemory& stage = stages[i];
    if (events < kMaxEvents) {
      const std::vector<AllocationEvent> timeline =
          stage_timeline(job, plan, pieces.blocks, pieces.stages[i]);
      events += std::ssize(timeline);
      const AllocatorPeaks peaks = replay_allocator(timeline, job.profile.allocator);
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
}

Fit fit_of(const Job& job, const std::vector<StageMemory>& stages) {
  const std::int64_t capacity = device_capacity_bytes(job.cluster);
  Fit fit = Fit::kFits;
  for (const StageMemory& stage : stages) {
    if (stage.required_bytes + stage.outside_bytes > capacity) {
      return Fit::kDoesNotFit;
    }
    fit = stage.device_used_bytes > capacity ? Fit::kTight : fit;
  }
  return fit;
}

Fit fit_of_plan(const Job& job, const Plan& plan) {
  const std::int64_t capacity = device_capacity_bytes(job.cluster);
  const PlanPieces pieces = plan_pieces(job, plan);
  std::vector<const StagePieces*> open;
  for (const StagePieces& stage : pieces.stages) {
    const std::int64_t outside = outside_bytes(job, plan, stage.layout.pp_rank);
    const std::int64_t allocated = stage.peaks.allocated_bytes;
    if (allocated + outside > capacity) {
      return Fit::kDoesNotFit;
    }
    if (reserved_upper_bytes(job.profile.allocator, stage.state.bytes, allocated) + outside >
        capacity) {
      open.push_back(&stage);
    }
  }
  Fit fit = Fit::kFits;
  for (const StagePieces* stage : open) {
    const AllocatorPeaks peaks = replay_stage(job, plan, pieces.blocks, *stage);
    const std::int64_t outside = outside_bytes(job, plan, stage->layout.pp_rank);
    if (peaks.required_bytes + outside > capacity) {
      return Fit::kDoesNotFit;
    }
    fit = peaks.reserved_bytes + outside > capacity ? Fit::kTight : fit;
  }
  return fit;
}

}  // namespace shardplan
