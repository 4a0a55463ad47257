// Memory of a rank that the driver counts beside the allocator's segments.
#pragma once

#include "estimator/ledger/outside.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

// Adds the parts of one rank of pipeline stage pp_rank.
void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts);
SeenByOutside seen_by_outside(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
