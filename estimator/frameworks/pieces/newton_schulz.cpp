#include "estimator/frameworks/pieces/newton_schulz.h"

#include <algorithm>

#include "estimator/time/kernel_time.h"

namespace shardplan {

// X X^T, its square with it, and X times that, in every step.
double newton_schulz_s(const GpuSpec& gpu, std::int64_t rows, std::int64_t columns) {
  const auto [small, large] = std::minmax(rows, columns);
  const auto product_s = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return gemm_s(gpu, Precision::kBf16, {.m = m, .n = n, .k = k});
  };
  return kNewtonSchulzSteps * (product_s(small, small, large) + product_s(small, small, small) +
                               product_s(small, large, small));
}

}  // namespace shardplan
