// What DeepSpeed's ZeRO-1 and 2 allocate before the first step, in the order of time: the model,
// one flat tensor of it, this rank's part in fp32 (runtime/zero/stage_1_and_2.py, __init__,
// initialize_optimizer_states). The model's tensors go to the host before the flat one is made
// where the card has no room for both, so that no estimate counts them; else their segments stay in
// the allocator's cache.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/allocator_replay.h"
#include "estimator/job.h"

namespace shardplan {

// `parameters`: elements of the model; `tensors`: of its large tensors.
std::vector<AllocationEvent> deepspeed_start_up(const Job& job, const Plan& plan,
                                                std::int64_t parameters,
                                                const std::vector<std::int64_t>& tensors);

// Bytes of freed tensors whose segments may stay.
std::int64_t deepspeed_left_by_start_up(const Job& job, const Plan& plan, std::int64_t parameters);

}  // namespace shardplan
