// The experts' products of `calibrate --time`: eight experts of Mixtral's width, equal rows each.
#include "validator/cuda/grouped_bench.h"

#include "estimator/plan/number.h"
#include "kernels/experts/grouped_gemm.h"
#include "kernels/experts/grouped_weight_gradient.h"
#include "validator/cuda/calibration.h"
#include "validator/cuda/stopwatch.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;

constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kWidth = 14336;

std::vector<std::int32_t> equal_offsets(std::int64_t rows) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t expert = 0; expert <= kExperts; ++expert) {
    offsets.push_back(static_cast<std::int32_t>(expert * rows));
  }
  return offsets;
}

}  // namespace

GroupedRates measure_grouped(const TimeCalibration& calibration, cudaStream_t stream) {
  const std::int64_t most = calibration.expert_rows.back() * kExperts;
  DeviceBuffer<Bf16> x(most * kHidden), y(most * kWidth), weight(kExperts * kHidden * kWidth);
  DeviceBuffer<float> gradient(kExperts * kHidden * kWidth);
  fill_random(x, most * kHidden, 1);
  fill_random(y, most * kWidth, 2);
  fill_random(weight, kExperts * kHidden * kWidth, 3);
  const auto gradient_bytes = static_cast<std::size_t>(kExperts * kHidden * kWidth) * sizeof(float);
  CUDA_CHECK(cudaMemset(gradient.data(), 0, gradient_bytes));
  Stopwatch watch(stream);
  GroupedRates rates;
  for (const std::int64_t rows : calibration.expert_rows) {
    DeviceBuffer<std::int32_t> offsets(equal_offsets(rows));
    const std::int64_t capacity = rows * kExperts;
    const double flops = 2 * number(capacity) * number(kHidden) * number(kWidth);
    const auto add = [&](std::vector<CurvePoint>& curve, const TimedCall& call) {
      const double seconds = watch.median_s(call, 4 * calibration.seconds_per_point);
      curve.push_back({.size = number(rows), .value = flops / seconds});
    };
    add(rates.forward, [&](cudaStream_t on) {
      grouped_gemm(y.data(), x.data(), weight.data(), offsets.data(),
                   {.experts = kExperts,
                    .capacity = capacity,
                    .columns = kWidth,
                    .inner = kHidden,
                    .b_layout = GemmLayout::kTransposed},
                   on);
    });
    add(rates.input_gradient, [&](cudaStream_t on) {
      grouped_gemm(x.data(), y.data(), weight.data(), offsets.data(),
                   {.experts = kExperts, .capacity = capacity, .columns = kHidden, .inner = kWidth},
                   on);
    });
    add(rates.weight_gradient, [&](cudaStream_t on) {
      grouped_weight_gradient(gradient.data(), y.data(), x.data(), offsets.data(),
                              {.experts = kExperts, .rows = kWidth, .columns = kHidden},
                              GradientSum::kAccumulate, on);
    });
  }
  return rates;
}

}  // namespace shardplan
