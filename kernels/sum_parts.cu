#include "kernels/sum_parts.h"

#include "kernels/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kBlocks =
    4;  // of a multiprocessor: registers for loads, which more blocks would halve

// One vector of the sum for every thread, which loads those of kUnroll parts before it uses the
// first. kUnroll divides num_parts.
template <class T, int kUnroll>
__global__ void __launch_bounds__(kElementwiseThreads, kBlocks)
    sum_kernel(T* sum, const T* parts, const T* own, int num_parts, int own_part,
               std::int64_t num_vectors) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x;
  if (index >= num_vectors) {
    return;
  }
  Floats<T> total = {};
  for (int first = 0; first < num_parts; first += kUnroll) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int part = first + i;
      const T* from = part == own_part ? own : parts + part * num_vectors * kVectorWidth<T>;
      loaded[i] = load_bits(from + index * kVectorWidth<T>);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Floats<T> values = floats_of<T>(loaded[i]);
#pragma unroll
      for (int k = 0; k < kVectorWidth<T>; ++k) { total.at[k] += values.at[k]; }
    }
  }
  store_bits(sum + index * kVectorWidth<T>, bits_of(total));
}

template <int kUnroll, class T>
void launch(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
            std::int64_t size, cudaStream_t stream) {
  const std::int64_t num_vectors = size / kVectorWidth<T>;
  sum_kernel<T, kUnroll><<<elementwise_blocks<1>(num_vectors), kElementwiseThreads, 0, stream>>>(
      sum, parts, own, static_cast<int>(num_parts), static_cast<int>(own_part), num_vectors);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T>
void sum_parts(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
               std::int64_t size, cudaStream_t stream) {
  if (num_parts % 8 == 0) {
    launch<8>(sum, parts, own, num_parts, own_part, size, stream);
  } else if (num_parts % 4 == 0) {
    launch<4>(sum, parts, own, num_parts, own_part, size, stream);
  } else if (num_parts % 2 == 0) {
    launch<2>(sum, parts, own, num_parts, own_part, size, stream);
  } else {
    launch<1>(sum, parts, own, num_parts, own_part, size, stream);
  }
}

template void sum_parts(float*, const float*, const float*, std::int64_t, std::int64_t,
                        std::int64_t, cudaStream_t);
template void sum_parts(__nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, std::int64_t,
                        std::int64_t, std::int64_t, cudaStream_t);

}  // namespace shardplan
