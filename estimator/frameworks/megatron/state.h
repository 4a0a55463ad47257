// What a rank of Megatron-LM holds besides activations: parameters, gradients and optimizer state,
// dense and expert, their padding, what an optimizer step makes, and what stays on the stage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::megatron {

// The optimizer takes gradients of other types than fp32 (--use-precision-aware-optimizer).
bool is_precision_aware(const Plan& plan);

// Whether main parameters are made beside the model's in bf16, all of them on the GPU: neither in
// Megatron-FSDP's buffers nor by a precision-aware optimizer, nor of weights kept in fp8.
bool has_plain_optimizer(const Job& job, const Plan& plan);

StageState state_of_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                          const StageTensors& tensors, std::optional<std::int64_t> data_rank);

}  // namespace shardplan::megatron
