#include "kernels/pointwise/sum_parts.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kBlocks =
    4;  // of a multiprocessor: registers for loads, which more blocks would halve

// One vector of the sum for every thread, which loads those of kUnroll parts before it uses the
// first. kUnroll divides num_parts.
template <class T, int kUnroll>
__global__ void __launch_bounds__(kElementwiseThreads, kBlocks)
    sum_kernel(T* sum, const T* parts, const T* own, int num_parts, int own_part,
               std::int64_t num_vectors, unsigned row_vectors, std::int64_t stride) {
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
  const unsigned row = static_cast<unsigned>(index) / row_vectors;
  const unsigned column = static_cast<unsigned>(index) % row_vectors;
  store_bits(sum + row * stride + column * kVectorWidth<T>, bits_of(total));
}

template <int kUnroll, class T>
void launch(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
            const SumRows& to, cudaStream_t stream) {
  const std::int64_t row_vectors = to.width / kVectorWidth<T>;
  const std::int64_t num_vectors = to.rows * row_vectors;
  sum_kernel<T, kUnroll><<<elementwise_blocks<1>(num_vectors), kElementwiseThreads, 0, stream>>>(
      sum, parts, own, static_cast<int>(num_parts), static_cast<int>(own_part), num_vectors,
      static_cast<unsigned>(row_vectors), to.stride);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T>
void sum_parts(T* sum, const T* parts, const T* own, std::int64_t num_parts, std::int64_t own_part,
               const SumRows& to, cudaStream_t stream) {
  if (num_parts % 8 == 0) {
    launch<8>(sum, parts, own, num_parts, own_part, to, stream);
  } else if (num_parts % 4 == 0) {
    launch<4>(sum, parts, own, num_parts, own_part, to, stream);
  } else if (num_parts % 2 == 0) {
    launch<2>(sum, parts, own, num_parts, own_part, to, stream);
  } else {
    launch<1>(sum, parts, own, num_parts, own_part, to, stream);
  }
}

template void sum_parts(float*, const float*, const float*, std::int64_t, std::int64_t,
                        const SumRows&, cudaStream_t);
template void sum_parts(__nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, std::int64_t,
                        std::int64_t, const SumRows&, cudaStream_t);

}  // namespace shardplan
