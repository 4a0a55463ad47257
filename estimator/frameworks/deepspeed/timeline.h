// The allocations of one rank of DeepSpeed in the order of time: the model, then steps.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/ledger/allocation.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// `rank` of the data-parallel ones; all of ZeRO-3 are alike. Two steps have all that a rank can
// have allocated.
PlayedRun deepspeed_run(const Job& job, const Plan& plan, std::int64_t rank, int steps = 2);

// Three steps show all that more would to an allocator that keeps what was freed.
std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, std::int64_t rank,
                                      int steps = 3);

}  // namespace shardplan::deepspeed
