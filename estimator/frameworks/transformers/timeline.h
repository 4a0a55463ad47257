// The allocations of a rank of transformers' Trainer in the order of time: the model, then steps.
#pragma once

#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

// Three steps show all that more would to an allocator that keeps what was freed.
std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
