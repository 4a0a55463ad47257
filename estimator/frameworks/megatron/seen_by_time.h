// Keys of prices: all that times of blocks look at of a plan besides sizes, in one number.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::megatron {

std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan);
std::int64_t sharding_seen_by_time(const Job& job, const Plan& plan, std::int64_t dp);

}  // namespace shardplan::megatron
