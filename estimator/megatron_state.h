// What a rank of Megatron-LM holds besides activations: parameters, gradients and optimizer state,
// dense and expert, their padding, what an optimizer step makes, and what stays on the stage.
#pragma once

#include <vector>

#include "estimator/stage_layout.h"
#include "estimator/stage_tensors.h"
#include "estimator/state_row.h"

namespace shardplan {

// The optimizer takes gradients of other types than fp32 (--use-precision-aware-optimizer).
bool is_precision_aware(const Plan& plan);

std::vector<StateRow> megatron_state_rows(const Job& job, const Plan& plan,
                                          const StageLayout& stage, const StageTensors& tensors);

}  // namespace shardplan
