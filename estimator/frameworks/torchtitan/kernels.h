// The kernels of torchtitan's blocks.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::torchtitan {

extern const BlockKernels kKernels;

// Microbatches whose gradients torchtitan adds up: all of a step, or 1 under FSDP without a
// pipeline, where every one is reduced.
std::int64_t accumulated_microbatches(const Job& job, const Plan& plan);

}  // namespace shardplan::torchtitan
