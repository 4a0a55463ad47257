// The source paper's formula (arXiv 2411.06465) as its author's calculator computes it, kept
// faithful to the byte including its known simplifications, and its 80 % rule.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan::fujii2024 {

// One StageMemory for the worst GPU. Decimal capacities; activations p microbatches on every stage.
MemoryEstimate estimate_by_formula(const Job& job, const Plan& plan);

}  // namespace shardplan::fujii2024
