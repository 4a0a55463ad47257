// The weight gradients of grouped_gemm(): one product for every expert over the rows that it
// received, whose number is read from device memory.
//   out of expert e (+)= transposed(a) * b over the rows of e; 0 where it has none
// (T, G): (float, float), (__nv_bfloat16, float) or (__nv_bfloat16, __nv_bfloat16); sums in float
// in a fixed order, rounded once. rows and columns are multiples of 8; pointers are 16-byte
// aligned; matrices are contiguous.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gradient_sum.h"

namespace shardplan {

struct GroupedWeightShape {
  std::int64_t experts = 0;
  std::int64_t rows = 0;  // of every gradient
  std::int64_t columns = 0;
};

// out     [experts, rows, columns]
// a       [capacity, rows]
// b       [capacity, columns]
// offsets [experts + 1]  as in grouped_gemm.h
template <class T, class G>
void grouped_weight_gradient(G* out, const T* a, const T* b, const std::int32_t* offsets,
                             const GroupedWeightShape& shape, GradientSum sum, cudaStream_t stream);

}  // namespace shardplan
