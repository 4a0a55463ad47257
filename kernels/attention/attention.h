// Causal attention (Dao, arXiv 2307.08691) without cuDNN: output and log-sum-exp only are kept,
// memory is linear in the length, and query heads share key heads without copies of them.
//   s = q . k / sqrt(head_dim),  p = softmax(s) over the keys that the query sees,  o = sum p v
// Every sum has one owner and a fixed order: forward and backward repeat bit for bit.
// bf16 with a head of 64 or 128 runs on tensor cores, on compute capability 9.0 by products of
// warpgroups (wgmma), elsewhere by those of warps (mma); float, and other heads, on plain
// arithmetic.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gradient_sum.h"

namespace shardplan {

// Query i of a sequence stands at query_position + i, key j at j. It sees key j where
// j <= query_position + i, and j > query_position + i - window where a window is set. Every query
// sees at least one key: query_position >= 0, and without a window no key must lie beyond.
// A query_position of key_length - 1 or more is attention without a mask.
// head_dim is a multiple of 8 and at most 256; heads is a multiple of kv_heads; strides, in
// elements from row to row, are multiples of 8; pointers are 16-byte aligned. Rows times heads stay
// below 2^32; heads and sequences are at most 65535, lengths 65535 * 128.
struct AttentionShape {
  std::int64_t batch = 1;  // sequences; their rows follow each other
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t query_position = 0;
  std::int64_t window = 0;  // 0: none
  std::int64_t q_stride = 0;
  std::int64_t kv_stride = 0;  // of k and of v
  std::int64_t o_stride = 0;
};

// T is float or __nv_bfloat16.
// o   [batch * query_length, heads * head_dim]      out
// lse [batch * query_length, heads]                 out, natural logarithm
// q   [batch * query_length, heads * head_dim]
// k,v [batch * key_length, kv_heads * head_dim]
template <class T>
void attention_forward(T* o, float* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& shape, cudaStream_t stream);

// Whether bf16 attention of this shape runs on warpgroups on the current device.
bool runs_on_warpgroups(const AttentionShape& shape);

// Where gradients go: a type of their own for keys and values, so that several calls can add up
// in float.
struct AttentionGradientShape {
  std::int64_t dq_stride = 0;
  std::int64_t dkv_stride = 0;  // of dk and of dv
  GradientSum dq_sum = GradientSum::kOverwrite;
  GradientSum dkv_sum = GradientSum::kOverwrite;
};

// (T, G): (float, float), (__nv_bfloat16, __nv_bfloat16) or (__nv_bfloat16, float).
// dq     as q, dk and dv as k and v, of type G
// delta  [batch * query_length, heads] scratch: the sum of dout * o of a row
// dout   as o, with its stride
template <class T, class G>
void attention_backward(G* dq, G* dk, G* dv, float* delta, const T* dout, const T* q, const T* k,
                        const T* v, const T* o, const float* lse, const AttentionShape& shape,
                        const AttentionGradientShape& gradients, cudaStream_t stream);

}  // namespace shardplan
