#include "kernels/pointwise/squared_norm.h"

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;

// The sum over the block in a fixed order, valid in thread 0.
__device__ double block_sum(double value) {
  __shared__ double warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  double sum = 0;
  for (const double warp : warps) { sum += warp; }
  return sum;
}

// Squares of one round are added in float, rounds in double: the sum of 10^10 squares stays exact
// to float's last digits.
template <class T>
__global__ void __launch_bounds__(kThreads)
    partial_kernel(double* __restrict__ partial, const T* __restrict__ values,
                   std::int64_t num_vectors) {
  constexpr int kWidth = kVectorWidth<T>;
  constexpr std::int64_t kStride = kSquaredNormPartials * kThreads;
  double total = 0;
  for (std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       index < num_vectors; index += kUnroll * kStride) {
    Vector<T> vectors[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      vectors[i] = index + i * kStride < num_vectors
                       ? load_vector(values + (index + i * kStride) * kWidth)
                       : Vector<T>{};
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      for (int k = 0; k < kWidth; ++k) {
        squares += to_float(vectors[i].at[k]) * to_float(vectors[i].at[k]);
      }
    }
    total += static_cast<double>(squares);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = total;
  }
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(float* __restrict__ result, const double* __restrict__ partial, double scale) {
  double total = 0;
  for (unsigned i = threadIdx.x; i < kSquaredNormPartials; i += kThreads) { total += partial[i]; }
  total = block_sum(total);
  if (threadIdx.x == 0) {
    *result += static_cast<float>(scale * total);
  }
}

__global__ void clip_kernel(float* factor_and_norm, const float* squared_norm, float max_norm) {
  const float norm = sqrtf(*squared_norm);
  factor_and_norm[0] = fminf(1.0F, max_norm / norm);
  factor_and_norm[1] = norm;
}

}  // namespace

template <class T>
void add_squared_norm(float* result, double* partial, const T* values, std::int64_t size,
                      double scale, cudaStream_t stream) {
  partial_kernel<<<static_cast<unsigned>(kSquaredNormPartials), kThreads, 0, stream>>>(
      partial, values, size / kVectorWidth<T>);
  CUDA_CHECK(cudaGetLastError());
  total_kernel<<<1, kThreads, 0, stream>>>(result, partial, scale);
  CUDA_CHECK(cudaGetLastError());
}

void clip_factor(float* factor_and_norm, const float* squared_norm, float max_norm,
                 cudaStream_t stream) {
  clip_kernel<<<1, 1, 0, stream>>>(factor_and_norm, squared_norm, max_norm);
  CUDA_CHECK(cudaGetLastError());
}

template void add_squared_norm(float*, double*, const float*, std::int64_t, double, cudaStream_t);
template void add_squared_norm(float*, double*, const __nv_bfloat16*, std::int64_t, double,
                               cudaStream_t);

}  // namespace shardplan
