// Pieces of Megatron-core's row tables with the local layer spec (no Transformer Engine, no Apex):
// eager PyTorch between column- and row-parallel linears. Sources, read at
//   Megatron-LM core_v0.16.1: core/models/gpt/gpt_layer_specs.py (get_gpt_layer_local_spec),
//     core/transformer/{transformer_layer,attention,mlp}.py, core/models/common/embeddings/
//     rope_utils.py, core/tensor_parallel/{layers,mappings,cross_entropy}.py,
//     core/fusions/fused_bias_swiglu.py, core/transformer/moe/{router,token_dispatcher,experts,
//     moe_utils}.py, core/pipeline_parallel/schedules.py;
//   PyTorch 2.11: aten/src/ATen/native/cudnn/MHA.cpp, native/transformers/cuda/sdp_utils.cpp.
// Every tensor is one block of the caching allocator.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

std::vector<BlockRow> local_rows(const Job& job, const Plan& plan, BlockKind kind);

}  // namespace shardplan::megatron
