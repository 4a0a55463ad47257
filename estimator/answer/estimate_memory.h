// The answer about memory. Of valid plans only, else logic_error.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// Rows, timeline peak and the four totals of every pipeline stage.
MemoryEstimate estimate_memory(const Job& job, const Plan& plan);
// Whether the tensors of every data-parallel rank are known apart: DeepSpeed's ZeRO-1 and 2. An
// estimate speaks of the fullest, this one of the rank asked for.
bool knows_data_ranks(const Job& job, const Plan& plan);
MemoryEstimate estimate_memory_of_rank(const Job& job, const Plan& plan, std::int64_t data_rank);

// The one of the two capacities of a cluster (capacity.h) that MemoryEstimate::fit is judged by.
std::int64_t card_bytes(const Job& job);

}  // namespace shardplan
