// RMSNorm, alone and fused with the residual addition before it, and its backward pass.
//   y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + epsilon), one rstd per row
// T is float or __nv_bfloat16; sums run in float in a fixed order (bitwise repeatable).
// width is a multiple of 8 and at most 65536; pointers are 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gradient_sum.h"

namespace shardplan {

// y      [rows, width]  out
// rstd   [rows]         out, float; or null
// x      [rows, width]
// weight [width]
template <class T>
void rms_norm_forward(T* y, float* rstd, const T* x, const T* weight, std::int64_t rows,
                      std::int64_t width, float epsilon, cudaStream_t stream);

// sum = x + residual, then as above on sum. sum may be x or residual.
// y, sum [rows, width]  out
template <class T>
void add_rms_norm_forward(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* weight,
                          std::int64_t rows, std::int64_t width, float epsilon,
                          cudaStream_t stream);

// Blocks of the weight gradient's first stage: fixed, so that the result does not depend on the
// GPU.
inline constexpr std::int64_t kRmsNormPartials = 132;

// dx      [rows, width]  out: gradient of the norm's input, plus dx_add where that is not null
// dweight [width]        out, or the gradient is added to it: G, float or, of bf16, __nv_bfloat16,
//                        summed in float and rounded once
// partial [kRmsNormPartials, width] float, scratch
// dy, x   [rows, width]; dx may be dx_add or dy
// dx_add  [rows, width] or null: the residual branch's gradient
template <class T, class G>
void rms_norm_backward(T* dx, G* dweight, float* partial, const T* dy, const T* x,
                       const float* rstd, const T* weight, const T* dx_add, std::int64_t rows,
                       std::int64_t width, cudaStream_t stream,
                       GradientSum sum = GradientSum::kAccumulate);

}  // namespace shardplan
