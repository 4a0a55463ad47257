// The allocations of one pipeline rank in the order of time: start-up, the first step, two more;
// what a replay of the caching allocator is fed with.
#pragma once

#include <vector>

#include "estimator/allocator_replay.h"
#include "estimator/rank_tensors.h"
#include "estimator/stage_memory.h"

namespace shardplan {

// Steps are cut to the shortest schedule that reaches the same peaks.
std::vector<AllocationEvent> stage_timeline(const Job& job, const Plan& plan,
                                            const BlockSet& blocks, const StagePieces& pieces,
                                            const RankTensors& tensors);
inline std::vector<AllocationEvent> stage_timeline(const Job& job, const Plan& plan,
                                                   const BlockSet& blocks,
                                                   const StagePieces& pieces,
                                                   std::int64_t rank = 0) {
  return stage_timeline(job, plan, blocks, pieces, rank_tensors(job, plan, pieces, rank));
}

}  // namespace shardplan
