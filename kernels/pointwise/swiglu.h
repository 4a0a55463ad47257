// SwiGLU on packed gate and up projections, and its backward pass.
//   out = silu(gate) * up,  silu(x) = x / (1 + exp(-x))
// T is float or __nv_bfloat16. width is a multiple of 8, rows * width below 2^34; pointers are
// 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// out     [rows, width]      out
// gate_up [rows, 2 * width]  gate first, up second
template <class T>
void swiglu_forward(T* out, const T* gate_up, std::int64_t rows, std::int64_t width,
                    cudaStream_t stream);

// dgate_up [rows, 2 * width]  out; may be gate_up
// out      [rows, width]      the forward output once more, for the weight gradient of the
//                             projection after it, or null; may be dout
// dout     [rows, width]
template <class T>
void swiglu_backward(T* dgate_up, T* out, const T* dout, const T* gate_up, std::int64_t rows,
                     std::int64_t width, cudaStream_t stream);

}  // namespace shardplan
