#include "kernels/pointwise/random.h"

#include "kernels/pointwise/elementwise.cuh"
#include "kernels/pointwise/mix.cuh"

namespace shardplan {
namespace {

// Box and Muller (1958), cosine branch only: number i depends on nothing but seed and i.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    normal_kernel(T* __restrict__ to, float deviation, std::uint64_t key, std::int64_t first,
                  std::int64_t size) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x;
  if (index < size) {
    const std::uint64_t bits = mix(key + static_cast<std::uint64_t>(first + index));
    constexpr float kUnit = 1.0F / 4294967296.0F;
    const float radius = (static_cast<float>(bits >> 32) + 0.5F) * kUnit;
    const float angle = static_cast<float>(bits & 0xffffffffU) * kUnit;
    to[index] = from_float<T>(deviation * sqrtf(-2 * logf(radius)) * cospif(2 * angle));
  }
}

}  // namespace

template <class T>
void fill_normal(T* to, float deviation, std::uint64_t seed, std::int64_t first, std::int64_t size,
                 cudaStream_t stream) {
  normal_kernel<<<elementwise_blocks<1>(size), kElementwiseThreads, 0, stream>>>(
      to, deviation, seed * kGoldenGamma, first, size);
  CUDA_CHECK(cudaGetLastError());
}

template void fill_normal(float*, float, std::uint64_t, std::int64_t, std::int64_t, cudaStream_t);
template void fill_normal(__nv_bfloat16*, float, std::uint64_t, std::int64_t, std::int64_t,
                          cudaStream_t);

}  // namespace shardplan
