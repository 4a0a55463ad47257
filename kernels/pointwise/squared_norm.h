// The squared norm of gradients and the factor that clips them, without a host round trip.
// Two stages on a fixed grid: the result does not depend on the GPU and repeats bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

inline constexpr std::int64_t kSquaredNormPartials = 1024;

// result  [1]                     float; scale times the sum of squares is added to it
// partial [kSquaredNormPartials]  double, scratch
// values  [size]                  float or __nv_bfloat16, 16-byte aligned; size is a multiple of 8
template <class T>
void add_squared_norm(float* result, double* partial, const T* values, std::int64_t size,
                      double scale, cudaStream_t stream);

// factor_and_norm [2]  out: min(1, max_norm / norm), norm
// squared_norm    [1]
void clip_factor(float* factor_and_norm, const float* squared_norm, float max_norm,
                 cudaStream_t stream);

}  // namespace shardplan
