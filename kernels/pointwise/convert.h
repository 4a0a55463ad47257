// Conversion between bf16 and fp32, addition, and one value for all.
// size is a multiple of 8 elements where nothing else is said; pointers are 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// to = from, rounded to nearest where To is narrower. (To, From): (float, __nv_bfloat16) or
// (__nv_bfloat16, float).
// to, from [size]
template <class To, class From>
void convert(To* to, const From* from, std::int64_t size, cudaStream_t stream);

// sum = a + b, added in float and rounded once. (A, B): both float, both __nv_bfloat16, or a float
// accumulator A and __nv_bfloat16 B.
// sum, a, b [size], any size; sum may be a or, of the same type, b
template <class A, class B>
void add(A* sum, const A* a, const B* b, std::int64_t size, cudaStream_t stream);

// As convert() and sum += from, on rows that lie `stride` elements apart: columns and strides are
// multiples of 8. add_rows (To, From): both float, both __nv_bfloat16, or (float, __nv_bfloat16).
// to, sum, from [rows, columns]
template <class To, class From>
void convert_rows(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride,
                  std::int64_t rows, std::int64_t columns, cudaStream_t stream);
template <class To, class From>
void add_rows(To* sum, std::int64_t sum_stride, const From* from, std::int64_t from_stride,
              std::int64_t rows, std::int64_t columns, cudaStream_t stream);

// to [size]  out: value. T is float or __nv_bfloat16; any size and alignment.
template <class T>
void fill(T* to, float value, std::int64_t size, cudaStream_t stream);

}  // namespace shardplan
