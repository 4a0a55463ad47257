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

}  // namespace shardplan::huggingface
