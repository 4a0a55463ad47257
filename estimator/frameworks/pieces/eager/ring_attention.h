// Ring attention of torch.distributed.tensor.experimental, to which scaled_dot_product_attention
// goes under context_parallel: each rank has a first and a last chunk of every sequence, and
// attends to the keys of one rank after the other. Source: PyTorch 2.11
// torch/distributed/tensor/experimental/_context_parallel/_attention.py
// (_templated_ring_attention, _templated_ring_attention_backward, _SDPAMerger).
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

struct RingShape {
  std::int64_t tokens = 0;  // of a rank
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t ranks = 2;
  bool gathers = true;  // all keys and values at once; else they come from the rank before
};

// Queries, keys and values of this rank's tokens. The fullest rank is the last but one: it has
// rounds of whole queries on half the keys of an earlier rank, and one of half its queries on the
// keys of a later one. From that on its output and its gradient of queries lie by heads; the last
// rank's, which has no such round, lie by tokens.
Tensor ring_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                      const RingShape& shape);

}  // namespace shardplan::eager
