// The squared norm of gradients and the factor that clips them, without a host round trip.
// Two stages on a fixed grid: the result does not depend on the GPU and repeats bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

inline constexpr std::int64_t kSquaredNormPartials = 1024;

// result  [1]                     double; the sum of squares is added to it
// partial [kSquaredNormPartials]  double, scratch
// values  [size]                  float or __nv_bfloat16, 16-byte aligned; size is a multiple of 8
template <class T>
void add_squared_norm(double* result, double* partial, const T* values, std::int64_t size,
                      cudaStream_t stream);

// factor [1]  out: min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does
// norm   [1]  out: the root of squared_norm
void clip_factor(float* factor, float* norm, const double* squared_norm, float max_norm,
                 cudaStream_t stream);

}  // namespace shardplan
