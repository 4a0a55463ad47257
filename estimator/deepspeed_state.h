// What a rank of DeepSpeed holds besides activations, what its optimizer updates at once, and what
// start-up leaves behind.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/stage_tensors.h"
#include "estimator/state_row.h"

namespace shardplan {

std::vector<StateRow> deepspeed_state_rows(const Job& job, const Plan& plan,
                                           const StageTensors& tensors);

// ZeRO-3 updates one sub-group after the other: elements of this rank's parts, each closed by the
// tensor with which it reaches sub_group_size, by default 1e9 (_create_fp16_sub_groups).
std::vector<std::int64_t> deepspeed_sub_groups(const Job& job, const Plan& plan);

// Whether the card has room for the flat tensor of `parameters` elements beside the model's own;
// else the model goes to the host before.
bool deepspeed_flattens_on_gpu(const Job& job, const Plan& plan, std::int64_t parameters);

// Bytes freed before the first step whose segments may stay in the allocator's cache: the model's
// own tensors, or ZeRO-3's gathered ones, and copies of this rank's part.
std::int64_t deepspeed_left_by_start_up(const Job& job, const Plan& plan, std::int64_t parameters);

}  // namespace shardplan
