// The frame of kernels that treat vectors of 16 bytes independently. Device code only.
#pragma once

#include <cstdint>

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {

inline constexpr int kElementwiseThreads = 256;

// Four elements, for kernels that mix types: 16 bytes of float, 8 of bf16, without gaps between
// the threads of a warp for either.
inline constexpr int kPackWidth = 4;

template <class T>
struct alignas(kPackWidth * sizeof(T)) Pack {
  T at[kPackWidth];
};

template <class T>
__device__ Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}

template <class T>
__device__ void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// A block owns kUnroll * kElementwiseThreads neighbouring vectors. Every thread loads all its
// vectors before it uses the first, so that enough loads are in flight; load(vector) returns what
// store(vector, loaded) takes.
template <int kUnroll, class Load, class Store>
__device__ void for_each_vector(std::int64_t num_vectors, Load load, Store store) {
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kUnroll * kElementwiseThreads) + threadIdx.x;
  decltype(load(first)) loaded[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kElementwiseThreads < num_vectors) {
      loaded[i] = load(first + i * kElementwiseThreads);
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kElementwiseThreads < num_vectors) {
      store(first + i * kElementwiseThreads, loaded[i]);
    }
  }
}

template <int kUnroll>
unsigned elementwise_blocks(std::int64_t num_vectors) {
  constexpr int kPerBlock = kUnroll * kElementwiseThreads;
  return static_cast<unsigned>((num_vectors + kPerBlock - 1) / kPerBlock);
}

}  // namespace shardplan
