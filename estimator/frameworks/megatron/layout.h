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

// Transformer Engine fuses a norm into the one linear layer behind it, before grouped-query
// attention and before a dense FFN, and Megatron-LM puts an IdentityOp in its place
// (core/models/gpt/gpt_layer_specs.py:182-277, core/transformer/transformer_layer.py:382-435). Rows
// of experts vary; those of the local layers do not say which ones.
inline constexpr FrameworkLayout kLayout = {.cuts_fused_qkv_evenly = true,
                                            .reduces_whole_experts_as_dense = true,
                                            .experts_vary_by_chance = true,
                                            .fuses_norms_into_linears = true};

}  // namespace shardplan::megatron
