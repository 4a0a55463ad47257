// Rows of a stage's state that Megatron-LM has under precision fp8 alone: what fp8_weights.h says
// of the weights of its linear layers.
#pragma once

#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::megatron {

// Rows without elements do not exist; bytes are not set.
std::vector<StateRow> megatron_fp8_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                        const StageTensors& tensors);

// --fp8-param-gather: what the update makes before it casts main parameters to fp8, in tensors of
// `elements` together. Transformer Engine v2.9 pytorch/tensor/utils.py, cast_master_weights_to_fp8:
// a list of them all in the weights' own type, so that values round as without the option. Not
// where FusedAdam holds them and writes fp8 itself (Megatron-LM core_v0.16.1 core/optimizer/
// distrib_optimizer.py, _copy_main_params_to_model_params), nor with mxfp8, whose main parameters
// are written to the gathers' buffers (_copy_main_params_to_param_buffer).
StateRow cast_main_parameters(const Job& job, const Plan& plan, std::int64_t elements);

}  // namespace shardplan::megatron
