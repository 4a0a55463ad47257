// Attention of Hugging Face's models: scaled_dot_product_attention with and without a mask, and
// the eager implementation. Sources: transformers 5.17 integrations/sdpa_attention.py,
// masking_utils.py, models/llama/modeling_llama.py eager_attention_forward; PyTorch 2.11
// aten/src/ATen/native/transformers/attention.cpp.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct AttentionSizes {
  std::int64_t tokens = 0;
  std::int64_t sequence = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_dim = 0;  // of queries and keys
  std::int64_t value_dim = 0;
  std::int64_t ranks = 1;    // of which each has a part of these tokens, but for attention
  bool caps_scores = false;  // which scaled_dot_product_attention leaves out
};

// integrations/sdpa_attention.py use_gqa_in_sdpa: of wider heads keys and values are repeated.
inline constexpr std::int64_t kWidestHead = 256;

// Of queries, keys and values behind their rotation. `mask`: one byte for each pair of positions
// of every sequence, undefined where attention is causal alone.
eager::Tensor scaled_dot_product(eager::Graph& graph, const eager::Tensor& query,
                                 const eager::Tensor& key, const eager::Tensor& value,
                                 const eager::Tensor& mask, const AttentionSizes& sizes);

// The same of one head of keys and values that is handed over for all heads of queries, which no
// fused kernel takes (sdp_utils_cpp.h check_batch_size_and_num_heads_dense): operator by operator
// in fp32 (_scaled_dot_product_attention_math).
eager::Tensor broadcast_attention(eager::Graph& graph, const eager::Tensor& query,
                                  const eager::Tensor& key, const eager::Tensor& value,
                                  const eager::Tensor& mask, const AttentionSizes& sizes);

// `mask`: added to the scores, in the type of the residual stream.
eager::Tensor eager_attention(eager::Graph& graph, const eager::Tensor& query,
                              const eager::Tensor& key, const eager::Tensor& value,
                              const eager::Tensor& mask, const AttentionSizes& sizes);

// GPTJAttention._attn: queries and keys in fp32, softmax in the type of their product, and tokens
// in front again.
eager::Tensor fp32_attention(eager::Graph& graph, const eager::Tensor& query,
                             const eager::Tensor& key, const eager::Tensor& value,
                             const eager::Tensor& mask, const AttentionSizes& sizes);

// What attention is made of operator by operator. Keys or values for every query head; gradients of
// equal heads are summed (repeat_kv). Of one head all others are views.
eager::Tensor repeat_heads(eager::Graph& graph, const eager::Tensor& input,
                           const AttentionSizes& sizes);
// A product of two activations; derivatives of the second, then the first.
eager::Tensor attention_product(eager::Graph& graph, const eager::Tensor& left,
                                const eager::Tensor& right, std::int64_t elements);
// Saves its result; its gradient goes by way of the product of both.
eager::Tensor softmax(eager::Graph& graph, const eager::Tensor& scores);

// The mask of a forward pass (sdpa_mask, eager_mask): made from a byte for each pair.
eager::Tensor byte_mask(eager::Graph& graph, const AttentionSizes& sizes);
eager::Tensor additive_mask(eager::Graph& graph, const AttentionSizes& sizes, DType dtype);

// Ulysses: each rank has a part of every sequence, and attention all of it for a part of the heads.
// Tokens for heads, or back: what is sent and what is received lie beside the result, and nothing
// is saved. Sources: arXiv 2309.14509; LLaMA-Factory ff6d4d1
// src/llamafactory/v1/plugins/model_plugins/parallelization/seq_comm.py; ms-swift 3602360
// swift/sequence_parallel/ulysses.py; DeepSpeed 0.19.6 sequence/layer.py.
eager::Tensor exchanged(eager::Graph& graph, const eager::Tensor& input);

}  // namespace shardplan::huggingface
