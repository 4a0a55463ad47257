// Memory outside the allocator: CUDA context, library handles and workspaces, NCCL communicators.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/outside.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// Rows with in_allocator == false for one rank of pipeline stage pp_rank: context, libraries, and
// one row per communicator that the plan uses (all groups when the profile creates them eagerly).
// Measured values of the GPU file are used where present; each row's formula says which.
std::vector<Row> outside_rows(const Job& job, const Plan& plan, std::int64_t pp_rank);

// The sum of outside_rows without building them; for search.
std::int64_t outside_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank);

SeenByOutside seen_by_outside(const Job& job, const Plan& plan);

}  // namespace shardplan
