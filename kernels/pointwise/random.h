// Random numbers made on the device: weights and operands to measure speed with.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// Normal numbers of mean 0, independent of each other and the same for the same seed and first:
// element i is number first + i of the seed's sequence.
// to [size]  out. T is float or __nv_bfloat16; any size.
template <class T>
void fill_normal(T* to, float deviation, std::uint64_t seed, std::int64_t first, std::int64_t size,
                 cudaStream_t stream);

}  // namespace shardplan
