// FlashAttention over keys and values that are gathered from all ranks, one head of keys after the
// other. Sources: ring-flash-attn 0.1.8 llama3_flash_attn_varlen.py (Llama3FlashAttnVarlenFunc,
// with heads_k_stride 1); flash-attn 2.8 csrc/flash_attn/flash_api.cpp mha_varlen_bwd.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

struct GatheredAttentionShape {
  std::int64_t tokens = 0;  // of a rank
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t ranks = 2;
};

// Queries, keys and values of this rank's run of tokens, tokens in front of heads. The fullest rank
// is the last: its queries attend to keys of all ranks.
Tensor gathered_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                          const GatheredAttentionShape& shape);

}  // namespace shardplan::eager
