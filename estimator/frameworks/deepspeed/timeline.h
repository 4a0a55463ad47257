// The allocations of one rank of DeepSpeed in the order of time: the model, then steps.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/ledger/allocation.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

struct DeepspeedRun {
  std::vector<AllocationEvent> events;
  std::vector<DeepspeedTape::RowStart> rows;
  std::vector<DeepspeedTape::MomentStart> moments;
  std::int64_t num_first_step = 0;  // those and the ones of the first step
};

// `rank` of the data-parallel ones; all of ZeRO-3 are alike. Two steps have all that a rank can
// have allocated.
DeepspeedRun deepspeed_run(const Job& job, const Plan& plan, std::int64_t rank, int steps = 2);

// Three steps show all that more would to an allocator that keeps what was freed.
std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, std::int64_t rank,
                                      int steps = 3);

}  // namespace shardplan::deepspeed
