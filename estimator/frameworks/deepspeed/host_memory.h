// What a rank of DeepSpeed holds of host memory for what it offloads.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// From the first step on, of the rank that holds the most; 0 without offload. Counted from
// runtime/zero/stage_1_and_2.py, stage3.py, partition_parameters.py and ops/adam/cpu_adam.py of
// 0.19.6, not measured. Page-locked tensors take the next power of two, and freed ones stay with
// the process (PyTorch aten/src/ATen/core/CachingHostAllocator.h, allocate, free).
std::int64_t host_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::deepspeed
