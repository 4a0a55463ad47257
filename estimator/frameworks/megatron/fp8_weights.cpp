#include "estimator/frameworks/megatron/fp8_weights.h"

#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

// Whether products read a factor in either layout. Not on 12.x.
bool takes_both_layouts(const GpuSpec& gpu) {
  return (gpu.compute_capability >= 100 && gpu.compute_capability < 120) ||
         gpu.compute_capability >= 130;
}

}  // namespace

bool fp8_scales_tensors(const Job& job) {
  return job.profile.fp8_recipe == Fp8Recipe::kDelayed ||
         job.profile.fp8_recipe == Fp8Recipe::kTensorwise;
}

bool uses_delayed_scaling(const Job& job, const Plan& plan) {
  return plan.precision == Precision::kFp8 && job.profile.fp8_recipe == Fp8Recipe::kDelayed;
}

bool keeps_fp8_weights(const Job& job, const Plan& plan) {
  return job.profile.fp8_param_gather && plan.precision == Precision::kFp8;
}

bool gathers_through_gradients(const Job& job, const Plan& plan) {
  return keeps_fp8_weights(job, plan) && job.profile.fp8_recipe == Fp8Recipe::kMxfp8;
}

std::int64_t fp8_copies(const Job& job) {
  return fp8_scales_tensors(job) && takes_both_layouts(job.cluster.gpu) ? 1 : 2;
}

std::int64_t fp8_scale_bytes(const Job& job, const WeightShape& weight) {
  constexpr std::int64_t kScaledTogether = 32;
  constexpr std::int64_t kBlock = 128;
  constexpr std::int64_t kMultiple = 4;
  constexpr std::int64_t kFloatBytes = 4;
  const auto& [rows, columns, count] = weight;
  switch (job.profile.fp8_recipe) {
    case Fp8Recipe::kDelayed:
    case Fp8Recipe::kTensorwise: return 0;
    case Fp8Recipe::kBlockwise: {
      const std::int64_t tall = div_ceil(rows, kBlock);
      const std::int64_t wide = div_ceil(columns, kBlock);
      return count * kFloatBytes *
             (tall * round_up(wide, kMultiple) + wide * round_up(tall, kMultiple));
    }
    case Fp8Recipe::kMxfp8: break;
  }
  const auto one_way = [](std::int64_t along, std::int64_t across) {
    return round_up(div_ceil(along, kScaledTogether), kMultiple) * round_up(across, kBlock);
  };
  return count * (one_way(columns, rows) + one_way(rows, columns));
}

double fp8_weight_kernel_bytes(const Job& job, const Plan& plan) {
  constexpr double kBf16Bytes = 2;
  const double copies = static_cast<double>(fp8_copies(job));
  if (plan.precision != Precision::kFp8) {
    return 0;
  }
  if (gathers_through_gradients(job, plan)) {
    return kBf16Bytes + copies + kBf16Bytes;
  }
  if (keeps_fp8_weights(job, plan)) {
    return copies == 2 ? 2 : 0;
  }
  const bool measures = job.profile.fp8_recipe == Fp8Recipe::kTensorwise;
  return (measures ? 2 : 1) * kBf16Bytes + copies;
}

double fp8_cast_kernel_bytes(const Job& job, const Plan& plan) {
  if (!keeps_fp8_weights(job, plan) || gathers_through_gradients(job, plan)) {
    return 0;
  }
  return job.profile.fp8_recipe == Fp8Recipe::kDelayed ? 2 + 1 : 2 + 2 + 1;
}

std::int64_t fp8_activation_bytes(const Job& job, std::int64_t elements) {
  constexpr std::int64_t kValuesPerScaleByte = 32;
  return fp8_scales_tensors(job) ? elements : elements + div_ceil(elements, kValuesPerScaleByte);
}

}  // namespace shardplan::megatron
