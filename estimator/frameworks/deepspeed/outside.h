// Memory of a rank that the driver counts beside the allocator's segments.
#pragma once

#include "estimator/ledger/outside.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// Adds the parts of one rank of pipeline stage pp_rank.
void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts);
// Those that are there before the first step.
void add_outside_at_start(const Job& job, const Plan& plan, std::int64_t pp_rank,
                          OutsideParts& parts);

}  // namespace shardplan::deepspeed
