// One matrix product for every expert, over the rows that it received. Where an expert's rows begin
// is read from device memory, so that nothing waits for the host; rows that belong to no expert are
// not touched.
//   out[i] = a[i] * op(b of the expert of row i)
// T is float or __nv_bfloat16: plain arithmetic in float, or tensor cores with sums in float. Sums
// have a fixed order. columns and inner are multiples of 8; pointers are 16-byte aligned; matrices
// are contiguous.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace shardplan {

struct GroupedGemmShape {
  std::int64_t experts = 0;
  std::int64_t capacity = 0;  // rows of a and out
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  GemmLayout b_layout = GemmLayout::kPlain;
};

// out     [capacity, columns]
// a       [capacity, inner]
// b       [experts, inner, columns], or, transposed, [experts, columns, inner]
// offsets [experts + 1]  expert e has the rows offsets[e] to offsets[e + 1] - 1; ascending, at most
//                        capacity
template <class T>
void grouped_gemm(T* out, const T* a, const T* b, const std::int32_t* offsets,
                  const GroupedGemmShape& shape, cudaStream_t stream);

}  // namespace shardplan
