// Attention by a fused kernel. Source: PyTorch 2.11 aten/src/ATen/native/transformers/cuda/
// attention.cu, sdp_utils.cpp, and what the allocator recorded of it.
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
// scaled_dot_product_attention by a fused kernel.
Tensor fused_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionShape& shape);

}  // namespace shardplan::eager
