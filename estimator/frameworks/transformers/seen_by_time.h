// Keys of prices: all that times of blocks look at of a plan besides sizes.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::transformers {

// Later microbatches add their gradients to those of the first.
std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan);
// FSDP2 computes without autocast.
std::int64_t sharding_seen_by_time(const Job& job, const Plan& plan, std::int64_t dp);

}  // namespace shardplan::transformers
