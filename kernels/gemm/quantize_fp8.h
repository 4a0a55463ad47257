// Matrices in fp8 under one scale each, by rows and by columns: a product of fp8 on Hopper takes
// both factors with the inner dimension contiguous.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gemm_type.h"

namespace shardplan {

// 16-byte aligned.
struct Fp8Matrix {
  std::uint8_t* plain = nullptr;       // [rows, columns]; nullptr: not wanted
  std::uint8_t* transposed = nullptr;  // [columns, rows]; nullptr: not wanted
  float* amax = nullptr;               // [1]  out: the largest absolute value of x
  float* inverse_scale = nullptr;      // [1]  out: what fp8 values are multiplied with for x
};

// out = x * 2^e rounded to nearest even, with the largest e for which amax * 2^e is a value of the
// format, at most 126; 0 where amax is 0 or not finite. What is infinite becomes the largest value,
// what is no number stays none. T is float or __nv_bfloat16. The format is kE4m3 or kE5m2.
// x [rows, columns]  both multiples of 16, rows at most 65535 * 128; stride from row to row in
//                    elements, a multiple of 8
template <class T>
void quantize_fp8(const Fp8Matrix& out, GemmType format, const T* x, std::int64_t rows,
                  std::int64_t columns, std::int64_t stride, cudaStream_t stream);

}  // namespace shardplan
