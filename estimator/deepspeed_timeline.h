// The allocations of one rank of DeepSpeed in the order of time: the model, then steps.
#pragma once

#include <vector>

#include "estimator/allocator_replay.h"
#include "estimator/job.h"

namespace shardplan {

// `rank` of the data-parallel ones; all of ZeRO-3 are alike. Three steps show all that more would.
std::vector<AllocationEvent> deepspeed_timeline(const Job& job, const Plan& plan, std::int64_t rank,
                                                int steps = 3);

}  // namespace shardplan
