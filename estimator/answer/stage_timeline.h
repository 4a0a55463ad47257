// The allocations of one pipeline rank in the order of time: start-up, the first step, two more;
// what a replay of the caching allocator is fed with.
#pragma once

#include <vector>

#include "estimator/answer/rank_tensors.h"
#include "estimator/ledger/allocation.h"
#include "estimator/ledger/stage_pieces.h"

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
