// SwiGLU of the rows that experts received, scaled by the router's weight of every row, and its
// backward pass. How many rows there are is read from device memory; other rows are not touched.
//   out = weight * silu(gate) * up
// T is float or __nv_bfloat16. width is a multiple of 8, capacity * width below 2^34; pointers are
// 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// out      [capacity, width]      out
// gate_up  [capacity, 2 * width]  gate first, up second
// weights  [capacity]
// num_rows [1]                    at most capacity: the last of the experts' offsets
template <class T>
void expert_swiglu_forward(T* out, const T* gate_up, const float* weights,
                           const std::int32_t* num_rows, std::int64_t capacity, std::int64_t width,
                           cudaStream_t stream);

// dgate_up [capacity, 2 * width]  out; may be gate_up
// dweights [capacity]             out
// out      [capacity, width]      the forward output once more, or null; may be dout
// dout     [capacity, width]
template <class T>
void expert_swiglu_backward(T* dgate_up, float* dweights, T* out, const T* dout, const T* gate_up,
                            const float* weights, const std::int32_t* num_rows,
                            std::int64_t capacity, std::int64_t width, cudaStream_t stream);

}  // namespace shardplan
