// The sum of equal parts of which one lies elsewhere: what the members of a group have sent to one
// of them, and what it had itself. Added in float in the order of the parts and rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// T is float or __nv_bfloat16; size is a multiple of 8, num_parts of any number; pointers are
// 16-byte aligned. sum may be own, or where part own_part would lie, which is never read.
// sum    [size]             out
// parts  [num_parts, size]  without part own_part
// own    [size]             that part
template <class T>
void sum_parts(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
               std::int64_t size, cudaStream_t stream);

}  // namespace shardplan
