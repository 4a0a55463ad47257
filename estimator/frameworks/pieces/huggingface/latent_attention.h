// Queries, keys and values of multi-head latent attention. Source: transformers 5.17
// models/deepseek_v3/modeling_deepseek_v3.py DeepseekV3Attention (deepseek_v2's is alike);
// models/kimi_linear/modeling_kimi_linear.py KimiLinearAttention, which turns nothing. No run of
// either was measured.
#pragma once

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/frameworks/pieces/huggingface/rotary.h"
#include "estimator/plan/model_spec.h"

namespace shardplan::huggingface {

struct LatentProjections {
  Linear query_down, query_up;  // none: a plain projection of queries
  Linear key_value_down, key_value_up;
  Norm query_norm, key_value_norm;
};

struct Heads {
  eager::Tensor query, key, value;
  eager::Tensor gate;  // of attention that has one
};

struct LatentSizes {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  MlaSpec widths;
  RotaryKind rotary = RotaryKind::kEvenAndOdd;
  bool turns = true;  // no: what would be turned stays as it is (kimi_linear)
};

// `query`: the plain projection.
Heads latent_heads(eager::Graph& graph, LatentProjections& projections, Linear& query,
                   const eager::Tensor& input, const Rotary& rotary, const LatentSizes& sizes);

}  // namespace shardplan::huggingface
