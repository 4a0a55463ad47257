// The estimator's answers. Pure functions: no I/O, no globals; valid plans only (else logic_error).
#pragma once

#include <cstdint>

#include "estimator/answer/step_time.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// Rows, timeline peak and the four totals of every pipeline stage.
MemoryEstimate estimate_memory(const Job& job, const Plan& plan);
// Whether the tensors of every data-parallel rank are known apart: DeepSpeed's ZeRO-1 and 2. An
// estimate speaks of the fullest, this one of the rank asked for.
bool knows_data_ranks(const Job& job, const Plan& plan);
MemoryEstimate estimate_memory_of_rank(const Job& job, const Plan& plan, std::int64_t data_rank);

// Seconds of one optimizer step and where they go.
StepTime estimate_step_time(const Job& job, const Plan& plan);

// GPU memory that a threshold is a share of: the user's limit; else the nominal (decimal) capacity
// for the paper's rule, else what the driver reports.
std::int64_t nominal_capacity_bytes(const ClusterSpec& cluster);
std::int64_t device_capacity_bytes(const ClusterSpec& cluster);
// The one of the two that MemoryEstimate::fit is judged by.
std::int64_t card_bytes(const Job& job);

}  // namespace shardplan
