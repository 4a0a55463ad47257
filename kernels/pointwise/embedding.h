// Embedding of a vocabulary that may be split over ranks, and its deterministic backward pass.
// T is float or __nv_bfloat16. width is a multiple of 8, rows * width below 2^34; pointers are
// 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// out    [rows, width]        out; rows of tokens outside this shard are 0
// table  [num_tokens, width]  tokens first_token to first_token + num_tokens - 1
// tokens [rows]
template <class T>
void embedding_forward(T* out, const T* table, const std::int32_t* tokens, std::int64_t rows,
                       std::int64_t width, std::int64_t first_token, std::int64_t num_tokens,
                       cudaStream_t stream);

// Elements of the scratch of embedding_backward.
std::int64_t embedding_backward_scratch(std::int64_t rows);

// Rows are sorted by token; then one owner adds the rows of a token in their order.
// dtable  [num_tokens, width]  G, float or, of bf16, __nv_bfloat16: the gradient is added to it,
//                              summed in float and rounded once
// scratch [embedding_backward_scratch(rows)]
// dout    [rows, width]
// tokens  [rows]
template <class T, class G>
void embedding_backward(G* dtable, std::int32_t* scratch, const T* dout, const std::int32_t* tokens,
                        std::int64_t rows, std::int64_t width, std::int64_t first_token,
                        std::int64_t num_tokens, cudaStream_t stream);

}  // namespace shardplan
