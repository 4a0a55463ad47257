// AdamW (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2) over a flat shard.
//   g = gradient * factor
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   master -= rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay * master)
// Arithmetic in float. Moments in bf16 are rounded stochastically: an average over 20 steps and
// more moves by less than half of bf16's last place, so that rounding to nearest would freeze it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

struct AdamWSettings {
  float rate = 0;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float decay = 0;
  std::int64_t step = 1;   // t, from 1
  std::uint64_t seed = 0;  // of the stochastic rounding, with step and element
};

// All [size], a multiple of 8; pointers 16-byte aligned.
// weight   T       out: master rounded to T; null where T is float and master is the weight
// master   float   in, out
// m, v     M       in, out; float or __nv_bfloat16
// gradient G       float or __nv_bfloat16
// factor   [1]     the clip factor in device memory
// T is float or __nv_bfloat16.
template <class T, class M, class G>
void adamw(T* weight, float* master, M* m, M* v, const G* gradient, const float* factor,
           std::int64_t size, const AdamWSettings& settings, cudaStream_t stream);

}  // namespace shardplan
