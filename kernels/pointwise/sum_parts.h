// The sum of equal parts of which one lies elsewhere: what the members of a group have sent to one
// of them, and what it had itself. Added in float in the order of the parts and rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// Where the sum goes: rows of `width` elements, `stride` elements from row to row.
struct SumRows {
  std::int64_t rows = 1;
  std::int64_t width = 0;
  std::int64_t stride = 0;  // not read where there is one row
};

// T is float or __nv_bfloat16; num_parts is any number; width and, of several rows, stride are
// multiples of 8; pointers are 16-byte aligned; a part has fewer than 2^32 elements. sum may be own
// where its rows lie together, or where part own_part would lie, which is never read.
// sum    [rows, width]             out, of that stride
// parts  [num_parts, rows, width]  without part own_part
// own    [rows, width]             that part
template <class T>
void sum_parts(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
               const SumRows& to, cudaStream_t stream);

}  // namespace shardplan
