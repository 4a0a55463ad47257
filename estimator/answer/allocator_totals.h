// Reserved and required memory of the stages of a plan, from replays of the allocator.
#pragma once

#include <vector>

#include "estimator/allocator/replay.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// Fills reserved, required and device_used. Stages are replayed from the fullest on, as long as
// their events are few; the others are given the worst ratios met.
void replay_stages(const Job& job, const Plan& plan, const PlanPieces& pieces,
                   std::vector<StageMemory>& stages);

// Against what the driver reports as capacity, or the user's limit.
Fit fit_of(const Job& job, const std::vector<StageMemory>& stages);

struct PlayedTimeline {
  std::vector<AllocationEvent> events;
  AllocatorKind allocator = AllocatorKind::kCaching;
  CapacityReplay replay;
};

// The same for a plan of which nothing is known yet: bounds first, and where they leave it open one
// replay of the fullest stage at the card's capacity. What another plan has `played` is not played
// again, and what this one plays is added.
Fit fit_of_plan(const Job& job, const Plan& plan, std::vector<PlayedTimeline>& played);

}  // namespace shardplan
