// What a rank of DeepSpeed has allocated, read from its tape: rows of the ledger by phase, and the
// peaks of its moments.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/ledger/stage_state.h"

namespace shardplan::deepspeed {

// Rows and peaks of the rank; of the fullest one where none is given. `parameters` and `bytes` are
// left to the caller.
StageState state_of_stage(const Job& job, const Plan& plan,
                          std::optional<std::int64_t> rank = std::nullopt);

// ZeRO-3 updates one sub-group after the other: elements of this rank's parts, each closed by the
// tensor with which it reaches sub_group_size, by default 1e9 (_create_fp16_sub_groups).
std::vector<std::int64_t> deepspeed_sub_groups(const Job& job, const Plan& plan);
// How many of so many stay on the GPU, the first ones: all without offload_optimizer, with a ratio
// what it leaves, rounded down (_create_fp32_partitions).
std::int64_t deepspeed_sub_groups_on_gpu(const Plan& plan, std::int64_t sub_groups);

}  // namespace shardplan::deepspeed
