// 16-byte loads and stores of float or bf16, converted to and from float. Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <limits>

namespace shardplan {

// Elements of T in one 16-byte access: 4 floats, 8 bf16.
template <class T>
inline constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

template <class T>
struct alignas(16) Vector {
  T at[kVectorWidth<T>];
};

template <class T>
__device__ Vector<T> as_vector(uint4 bits) {
  Vector<T> vector;
  *reinterpret_cast<uint4*>(&vector) = bits;
  return vector;
}

template <class T>
__device__ Vector<T> load_vector(const T* from) {
  return as_vector<T>(*reinterpret_cast<const uint4*>(from));
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

// The sum over a warp in a fixed order; every lane gets it.
__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

__device__ inline float warp_max(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x and 1 / x as the special function unit gives them, to 2 units in the last place; what float
// cannot hold without denormals becomes 0. Half the instructions of __expf and __fdividef.
__device__ inline float quick_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline constexpr float kLog2E = 1.4426950408889634F;
__device__ inline float quick_exp(float x) {
  return quick_exp2(x * kLog2E);
}
__device__ inline float quick_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The sum over the blockDim.x threads of a row of the block, in a fixed order; every thread of the
// row gets it. `scratch` holds one float per warp of this row; a second call may follow at once
// only with another scratch. Contains one __syncthreads for the whole block.
__device__ inline float row_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) { sum += scratch[i]; }
  return sum;
}

}  // namespace shardplan
