// 16-byte loads and stores of float or bf16, converted to and from float. Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace shardplan {

// Elements of T in one 16-byte access: 4 floats, 8 bf16.
template <class T>
inline constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

template <class T>
struct alignas(16) Vector {
  T at[kVectorWidth<T>];
};

template <class T>
__device__ Vector<T> load_vector(const T* from) {
  Vector<T> vector;
  *reinterpret_cast<uint4*>(&vector) = *reinterpret_cast<const uint4*>(from);
  return vector;
}

template <class T>
__device__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&vector);
}

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// The sum over the blockDim.x threads of a row of the block, in a fixed order; every thread gets
// it. `scratch` holds num_warps floats of this row. Contains one __syncthreads for the whole block.
__device__ inline float row_sum(float value, float* scratch, int num_warps) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < num_warps; ++i) { sum += scratch[i]; }
  return sum;
}

}  // namespace shardplan
