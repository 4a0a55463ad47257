// Merges the attention of some keys into a running result over others, by their log-sum-exps, as
// ring attention needs it (Liu et al., arXiv 2310.01889).
//   new = log(exp(lse) + exp(part_lse)),  o = o exp(lse - new) + part_o exp(part_lse - new)
// A log-sum-exp of minus infinity means: no key was seen. head_dim is a multiple of 8; pointers are
// 16-byte aligned. Start with lse = minus infinity and o = 0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// The part covers rows first_row to length - 1 of every sequence: all of them, or the upper chunk
// of a zigzag share.
struct LseMergeShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t first_row = 0;
};

// o        [batch, length, heads, head_dim]              float, in place
// lse      [batch, heads, length]                        float, in place
// part_o   [batch, length - first_row, heads, head_dim]  T: float or __nv_bfloat16
// part_lse [batch, heads, length - first_row]            float
template <class T>
void lse_merge(float* o, float* lse, const T* part_o, const float* part_lse,
               const LseMergeShape& shape, cudaStream_t stream);

}  // namespace shardplan
