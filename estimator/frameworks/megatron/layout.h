// How Megatron-core (core_v0.16.1) lays out parameters, layers and pipelines.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan::megatron {

// With fewer heads of keys than tp ranks the fused qkv weight is still cut into tp equal parts, and
// its output gathered (core/transformer/attention.py, get_query_key_value_tensors).
// core/tensor_parallel/layers.py sets allreduce to not (is_expert and
// expert_model_parallel_size > 1), and core/distributed/distributed_data_parallel.py puts what has
// it into the dense buffers.
inline constexpr FrameworkLayout kLocalLayout = {.cuts_fused_qkv_evenly = true,
                                                 .reduces_whole_experts_as_dense = true};

// Parts that Transformer Engine's layers have here and the local ones have not. Of gpt_oss:
// softmax_type learnable, a bounded gate (activation_func_clamp_value, glu_linear_offset) and
// biases of router and experts (add_bias_linear), in Megatron-core since core_v0.15.0
// (core/transformer/transformer_config.py); sinks in Transformer Engine since 2.8. Of qwen3_next
// and qwen3_5: experimental_attention_variant gated_delta_net and attention_output_gate, since
// core_v0.16.0.
inline constexpr ModelParts kModelParts = kGptOssParts | kGatedDeltaParts;

// Transformer Engine fuses a norm into the one linear layer behind it, before grouped-query
// attention and before a dense FFN, and Megatron-LM puts an IdentityOp in its place
// (core/models/gpt/gpt_layer_specs.py:182-277, core/transformer/transformer_layer.py:382-435). Rows
// of experts vary; those of the local layers do not say which ones.
inline constexpr FrameworkLayout kLayout = {.cuts_fused_qkv_evenly = true,
                                            .reduces_whole_experts_as_dense = true,
                                            .experts_vary_by_chance = true,
                                            .fuses_norms_into_linears = true,
                                            .has_mixed_layers = true,
                                            .model_parts = kModelParts};

}  // namespace shardplan::megatron
