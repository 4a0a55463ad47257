// What a rank of torchtitan holds besides activations: parameters, gradients and optimizer state,
// and what stays on the stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "estimator/ledger/stage_state.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::torchtitan {

// A row of the state: autocast's cache of one GPU.
inline constexpr std::string_view kWeightCastsRow = "weight_casts";
// Workspaces of cuBLAS, one for forward and one for the thread of autograd.
inline constexpr std::string_view kThreadWorkspacesRow = "cublas_workspace";

StageState state_of_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& tensors, std::optional<std::int64_t> data_rank);
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);

}  // namespace shardplan::torchtitan
