// Attention with a sink: one more score of every head, which is in softmax's sum and weighs no
// value. Source: transformers 5.17 models/gpt_oss/modeling_gpt_oss.py eager_attention_forward; the
// class has no other implementation in PyTorch's own operators.
#pragma once

#include "estimator/frameworks/pieces/huggingface/attention.h"

namespace shardplan::huggingface {

// `mask`: added to the scores. `sinks`: one number of every query head.
eager::Tensor sink_attention(eager::Graph& graph, const eager::Tensor& query,
                             const eager::Tensor& key, const eager::Tensor& value,
                             const eager::Tensor& mask, const eager::Tensor& sinks,
                             const AttentionSizes& sizes);

// The same by FlashAttention 3 of kernels-community/vllm-flash-attn3, to which transformers 5.14
// and later go with such a model for every flash implementation (modeling_utils.py
// _compatible_flash_implementations). Sinks get no gradient. Sources: huggingface/kernels-community
// vllm-flash-attn3 torch-ext/vllm_flash_attn3/flash_attn_interface.py FlashAttnFunc,
// flash-attn/flash_api_stable.cpp mha_bwd.
eager::Tensor flash_attention_with_sinks(eager::Graph& graph, const eager::Tensor& query,
                                         const eager::Tensor& key, const eager::Tensor& value,
                                         const AttentionSizes& sizes);

}  // namespace shardplan::huggingface
