// The allocations of one pipeline rank in the order of time: start-up, the first step, two more;
// what a replay of the caching allocator is fed with.
#pragma once

#include <vector>

#include "estimator/answer/stage_memory.h"
#include "estimator/ledger/allocation.h"

namespace shardplan {

// Steps are cut to the shortest schedule that reaches the same peaks. `rank`: whose share of a
// sharded optimizer, where the profile's timeline has its tensors (Megatron-core's; DeepSpeed's
// ZeRO-1 and 2, counted from the rank of the state), and whose loads of experts.
std::vector<AllocationEvent> stage_timeline(const Job& job, const Plan& plan,
                                            const BlockSet& blocks, const StagePieces& pieces,
                                            std::int64_t rank = 0);

}  // namespace shardplan
