#include "kernels/pointwise/rope.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

// Heads of one thread: they share the angles, and their loads are in flight together.
constexpr int kHeads = 4;

__global__ void __launch_bounds__(kElementwiseThreads)
    table_kernel(float2* __restrict__ table, std::int64_t size, std::int64_t half, double theta) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x;
  if (index < size) {
    const double exponent = static_cast<double>(index % half) / static_cast<double>(half);
    const double angle = static_cast<double>(index / half) * pow(theta, -exponent);
    table[index] = {static_cast<float>(cos(angle)), static_cast<float>(sin(angle))};
  }
}

// A thread rotates vector `column` of the lower half of kHeads heads against the upper half.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    rope_kernel(T* __restrict__ qkv, const float2* __restrict__ table, RopeRows rows,
                std::int64_t row_width, unsigned num_heads, unsigned head_dim, float direction,
                unsigned num_threads) {
  constexpr int kWidth = kVectorWidth<T>;
  const unsigned index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= num_threads) {
    return;
  }
  const unsigned half = head_dim / 2;
  const unsigned columns = half / kWidth;
  const unsigned groups = (num_heads + kHeads - 1) / kHeads;
  const unsigned column = index % columns * kWidth;
  const unsigned head = index / columns % groups * kHeads;
  const unsigned row = index / columns / groups;
  const unsigned length = static_cast<unsigned>(rows.length);
  const unsigned in_sequence = row % length;
  const std::int64_t position = in_sequence < length / 2
                                    ? rows.first_start + in_sequence
                                    : rows.second_start + in_sequence - length / 2;
  T* begin = qkv + row * row_width + head * head_dim + column;
  Vector<T> lower[kHeads];
  Vector<T> upper[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (head + i < num_heads) {
      lower[i] = load_vector(begin + i * head_dim);
      upper[i] = load_vector(begin + i * head_dim + half);
    }
  }
  Vector<float> angles[kWidth / 2];  // cos, sin, cos, sin
#pragma unroll
  for (int k = 0; k < kWidth / 2; ++k) {
    angles[k] =
        load_vector(reinterpret_cast<const float*>(table + position * half + column) + 4 * k);
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (head + i < num_heads) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float cosine = angles[k / 2].at[k % 2 * 2];
        const float sine = angles[k / 2].at[k % 2 * 2 + 1] * direction;
        const float low = to_float(lower[i].at[k]);
        const float high = to_float(upper[i].at[k]);
        lower[i].at[k] = from_float<T>(low * cosine - high * sine);
        upper[i].at[k] = from_float<T>(high * cosine + low * sine);
      }
      store_vector(begin + i * head_dim, lower[i]);
      store_vector(begin + i * head_dim + half, upper[i]);
    }
  }
}

}  // namespace

void rope_table(float2* table, std::int64_t positions, std::int64_t head_dim, double theta,
                cudaStream_t stream) {
  const std::int64_t size = positions * (head_dim / 2);
  table_kernel<<<elementwise_blocks<1>(size), kElementwiseThreads, 0, stream>>>(
      table, size, head_dim / 2, theta);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void rope(T* qkv, const float2* table, const RopeRows& rows, std::int64_t row_width,
          std::int64_t num_heads, std::int64_t head_dim, RopeDirection direction,
          cudaStream_t stream) {
  const std::int64_t groups = (num_heads + kHeads - 1) / kHeads;
  const std::int64_t num_threads = rows.rows * groups * (head_dim / 2 / kVectorWidth<T>);
  rope_kernel<<<elementwise_blocks<1>(num_threads), kElementwiseThreads, 0, stream>>>(
      qkv, table, rows, row_width, static_cast<unsigned>(num_heads),
      static_cast<unsigned>(head_dim), direction == RopeDirection::kForward ? 1.0F : -1.0F,
      static_cast<unsigned>(num_threads));
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                                   \
  template void rope(T*, const float2*, const RopeRows&, std::int64_t, std::int64_t, std::int64_t, \
                     RopeDirection, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
