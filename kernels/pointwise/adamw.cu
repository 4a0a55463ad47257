#include "kernels/pointwise/adamw.h"

#include <cmath>

#include "kernels/pointwise/elementwise.cuh"
#include "kernels/pointwise/mix.cuh"

namespace shardplan {
namespace {

constexpr int kUnroll = 2;

// What the kernel needs of AdamWSettings: the bias corrections are the same for all elements.
struct Update {
  float rate, beta1, beta2, epsilon, decay, m_correction, v_correction;
  std::uint64_t key;
};

// Adds 16 random bits below the bits that bf16 keeps and cuts: up with the probability of what is
// cut off.
template <class M>
__device__ M to_moment(float value, unsigned random16);
template <>
__device__ float to_moment<float>(float value, unsigned) {
  return value;
}
template <>
__device__ __nv_bfloat16 to_moment<__nv_bfloat16>(float value, unsigned random16) {
  return __ushort_as_bfloat16(
      static_cast<unsigned short>((__float_as_uint(value) + random16) >> 16));
}

template <class T, class M, class G>
__global__ void __launch_bounds__(kElementwiseThreads)
    adamw_kernel(T* __restrict__ weight, float* __restrict__ master, M* __restrict__ m,
                 M* __restrict__ v, const G* __restrict__ gradient,
                 const float* __restrict__ factor, std::int64_t num_packs, Update update) {
  struct Loaded {
    Pack<float> master;
    Pack<M> m, v;
    Pack<G> gradient;
  };
  const float clip = *factor;
  for_each_vector<kUnroll>(
      num_packs,
      [&](std::int64_t index) {
        return Loaded{load_pack(master + index * kPackWidth), load_pack(m + index * kPackWidth),
                      load_pack(v + index * kPackWidth), load_pack(gradient + index * kPackWidth)};
      },
      [&](std::int64_t index, Loaded in) {
        Pack<T> rounded;
        for (int k = 0; k < kPackWidth; ++k) {
          const std::uint64_t random =
              sizeof(M) == 2 ? mix(update.key + static_cast<std::uint64_t>(index * kPackWidth + k))
                             : 0;
          const float g = to_float(in.gradient.at[k]) * clip;
          const float first = update.beta1 * to_float(in.m.at[k]) + (1 - update.beta1) * g;
          const float second = update.beta2 * to_float(in.v.at[k]) + (1 - update.beta2) * g * g;
          const float direction =
              first * update.m_correction / (sqrtf(second * update.v_correction) + update.epsilon);
          float& value = in.master.at[k];
          value -= update.rate * (direction + update.decay * value);
          in.m.at[k] = to_moment<M>(first, static_cast<unsigned>(random & 0xffffU));
          in.v.at[k] = to_moment<M>(second, static_cast<unsigned>((random >> 16) & 0xffffU));
          rounded.at[k] = from_float<T>(value);
        }
        store_pack(master + index * kPackWidth, in.master);
        store_pack(m + index * kPackWidth, in.m);
        store_pack(v + index * kPackWidth, in.v);
        if (weight != nullptr) {
          store_pack(weight + index * kPackWidth, rounded);
        }
      });
}

}  // namespace

template <class T, class M, class G>
void adamw(T* weight, float* master, M* m, M* v, const G* gradient, const float* factor,
           std::int64_t size, const AdamWSettings& settings, cudaStream_t stream) {
  const double step = static_cast<double>(settings.step);
  const double beta1 = settings.beta1;
  const double beta2 = settings.beta2;
  const Update update = {
      .rate = settings.rate,
      .beta1 = settings.beta1,
      .beta2 = settings.beta2,
      .epsilon = settings.epsilon,
      .decay = settings.decay,
      .m_correction = static_cast<float>(1 / (1 - std::pow(beta1, step))),
      .v_correction = static_cast<float>(1 / (1 - std::pow(beta2, step))),
      .key = (settings.seed + static_cast<std::uint64_t>(settings.step)) * kGoldenGamma,
  };
  const std::int64_t num_packs = size / kPackWidth;
  adamw_kernel<<<elementwise_blocks<kUnroll>(num_packs), kElementwiseThreads, 0, stream>>>(
      weight, master, m, v, gradient, factor, num_packs, update);
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T, M, G)                                          \
  template void adamw(T*, float*, M*, M*, const G*, const float*, std::int64_t, \
                      const AdamWSettings&, cudaStream_t);
SHARDPLAN_INSTANTIATE(float, float, float)
SHARDPLAN_INSTANTIATE(float, float, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(float, __nv_bfloat16, float)
SHARDPLAN_INSTANTIATE(float, __nv_bfloat16, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
