// Merges the attention of some keys into a running result over others, by their log-sum-exps, as
// ring attention needs it (Liu et al., arXiv 2310.01889).
//   new = log(exp(lse) + exp(part_lse)),  o = o exp(lse - new) + part_o exp(part_lse - new)
// A log-sum-exp of minus infinity means: no key was seen. head_dim is a multiple of 8; pointers are
// 16-byte aligned. Start with lse = minus infinity and o = 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// o        [rows, heads, head_dim]  float, in place
// lse      [rows, heads]            float, in place
// part_o   [rows, heads, head_dim]  T: float or __nv_bfloat16
// part_lse [rows, heads]            float
template <class T>
void lse_merge(float* o, float* lse, const T* part_o, const float* part_lse, std::int64_t rows,
               std::int64_t heads, std::int64_t head_dim, cudaStream_t stream);

}  // namespace shardplan
