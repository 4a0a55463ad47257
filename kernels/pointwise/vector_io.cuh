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

// The same by whole registers, for vectors that a thread keeps: the compiler gives each element of
// a Vector of bf16 a register of its own.
template <class T>
struct Floats {
  float at[kVectorWidth<T>];
};

template <class T>
__device__ uint4 load_bits(const T* from) {
  return *reinterpret_cast<const uint4*>(from);
}

template <class T>
__device__ void store_bits(T* to, uint4 bits) {
  *reinterpret_cast<uint4*>(to) = bits;
}

template <class T>
__device__ Floats<T> floats_of(uint4 bits);
template <>
__device__ inline Floats<float> floats_of<float>(uint4 bits) {
  return {{__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
           __uint_as_float(bits.w)}};
}
template <>
__device__ inline Floats<__nv_bfloat16> floats_of<__nv_bfloat16>(uint4 bits) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Floats<__nv_bfloat16> floats;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // bf16 is the upper half of a float
    floats.at[2 * i] = __uint_as_float(words[i] << 16);
    floats.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
  return floats;
}

__device__ inline uint4 bits_of(const Floats<float>& floats) {
  return {__float_as_uint(floats.at[0]), __float_as_uint(floats.at[1]),
          __float_as_uint(floats.at[2]), __float_as_uint(floats.at[3])};
}
__device__ inline uint4 bits_of(const Floats<__nv_bfloat16>& floats) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(floats.at[2 * i], floats.at[2 * i + 1]);
    words[i] = *reinterpret_cast<const unsigned*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Keeps the compiler from holding the floats of these bits instead, in twice the registers.
__device__ inline void keep_packed(uint4& bits) {
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
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
