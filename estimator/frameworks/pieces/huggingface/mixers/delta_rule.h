// The gated delta rule over chunks of 64 tokens, in fp32 between products (transformers 5.17
// models/qwen3_next/modeling_qwen3_next.py torch_chunk_gated_delta_rule).
#pragma once

#include "estimator/frameworks/pieces/huggingface/mixers/delta_net.h"

namespace shardplan::huggingface {

struct DeltaInputs {
  eager::Tensor query, key, value;  // of value heads; rows of tokens
  eager::Tensor decay;              // in fp32
  eager::Tensor rate;
};

eager::Tensor delta_rule(eager::Graph& graph, const DeltaInputs& inputs, const DeltaSizes& sizes);

}  // namespace shardplan::huggingface
