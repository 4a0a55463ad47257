// What runs around the products of experts.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan::huggingface {

BlockTime expert_exchange(const BlockContext& context, double rows);

// What an estimate of those kernels of experts takes for granted; nullptr: nothing.
const char* expert_kernels_assumption(const Job& job);

}  // namespace shardplan::huggingface
