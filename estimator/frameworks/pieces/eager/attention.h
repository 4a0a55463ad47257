// Attention by a fused kernel. Sources: PyTorch 2.11
// aten/src/ATen/native/transformers/attention.cpp, cuda/sdp_utils.cpp, cuda/attention.cu,
// cuda/attention_backward.cu and cuda/mem_eff_attention/kernel_backward.h, and what the allocator
// recorded of them.
#pragma once

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

struct AttentionShape {
  std::int64_t tokens = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t mask_elements = 0;  // of a mask of bytes, which becomes one that is added
  std::int64_t output_elements = 0;
};
// scaled_dot_product_attention by cuDNN's or FlashAttention's kernel.
Tensor fused_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionShape& shape);

struct WideAttentionShape {
  std::int64_t sequences = 0;
  std::int64_t sequence = 0;  // tokens of each
  std::int64_t heads = 0;     // of queries, keys and values alike
  std::int64_t head_dim = 0;  // likewise; a multiple of 8
};
// The same by CUTLASS's memory-efficient kernel, which alone takes heads wider than 256, and wider
// than 128 under a mask. `mask`: bytes, which become numbers that are added, or such numbers;
// undefined: attention is causal.
Tensor memory_efficient_attention(Graph& graph, const Tensor& query, const Tensor& key,
                                  const Tensor& value, const Tensor& mask,
                                  const WideAttentionShape& shape);
// Bytes that its backward pass accumulates in, of half-precision tensors or of fp32.
std::int64_t memory_efficient_workspace(const WideAttentionShape& shape, bool is_half);

}  // namespace shardplan::eager
