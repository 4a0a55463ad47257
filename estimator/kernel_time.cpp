#include "estimator/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>

#include "estimator/efficiency.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

// A cuBLAS tile and what it reaches of the largest one's rate: smaller tiles reuse less.
struct Tile {
  std::int64_t rows;
  std::int64_t columns;
  double rate;
};
constexpr std::array<Tile, 4> kTiles = {{{.rows = 128, .columns = 256, .rate = 1.0},
                                         {.rows = 256, .columns = 128, .rate = 1.0},
                                         {.rows = 128, .columns = 128, .rate = 0.87},
                                         {.rows = 64, .columns = 64, .rate = 0.5}}};

// Straight lines between the points over log(size), constant beyond the ends.
double share_at(std::span<const CurvePoint> curve, double size) {
  if (size <= curve.front().size) {
    return curve.front().share;
  }
  for (std::size_t i = 1; i < curve.size(); ++i) {
    if (size <= curve[i].size) {
      const CurvePoint& a = curve[i - 1];
      const CurvePoint& b = curve[i];
      return a.share + (b.share - a.share) * std::log(size / a.size) / std::log(b.size / a.size);
    }
  }
  return curve.back().share;
}

// Whole waves of tiles over the SMs, each as long as its k plus prologue; the best tile counts. A
// product that fills a wave badly pays for the whole wave.
double tiled_gemm_s(const GpuSpec& gpu, double flops_per_s, const GemmShape& shape) {
  const std::int64_t sms = std::max<std::int64_t>(1, gpu.num_sms);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const std::int64_t tiles =
        shape.count * div_ceil(shape.m, tile.rows) * div_ceil(shape.n, tile.columns);
    const double flops_of_tile = 2.0 * static_cast<double>(tile.rows * tile.columns) *
                                 (static_cast<double>(shape.k) + kGemmPrologue.value);
    const double waves = static_cast<double>(div_ceil(tiles, sms));
    best = std::min(best,
                    waves * flops_of_tile * static_cast<double>(sms) / (flops_per_s * tile.rate));
  }
  return best;
}

double gemm_share(const GpuSpec& gpu, Precision precision) {
  if (precision == Precision::kFp8) {
    return kFp8GemmShare.value;
  }
  if (gpu.compute_capability >= 100) {
    return kGemmShareBlackwell.value;
  }
  return gpu.compute_capability >= 90 ? kGemmShareHopper.value : kGemmShareAmpere.value;
}

double attention_scale(const GpuSpec& gpu) {
  return gpu.compute_capability >= 100 ? kAttentionScaleBlackwell.value : 1;
}

double small_head_share(const AttentionWork& work) {
  return work.qk_dim <= 64 ? kSmallHeadShare.value : 1;
}

}  // namespace

double peak_flops_per_s(const GpuSpec& gpu, Precision precision) {
  switch (precision) {
    case Precision::kFp32: return gpu.fp32_flops_per_s;
    case Precision::kBf16: return gpu.bf16_flops_per_s;
    case Precision::kFp16: return gpu.fp16_flops_per_s;
    case Precision::kFp8: return gpu.fp8_flops_per_s;
  }
  throw std::logic_error("peak_flops_per_s: unknown precision");
}

double gemm_s(const GpuSpec& gpu, Precision precision, const GemmShape& shape) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0 || shape.count == 0) {
    return 0;
  }
  const double peak = peak_flops_per_s(gpu, precision);
  if (!gpu.gemm_efficiency.empty()) {
    const double one_product = shape.flops() / static_cast<double>(shape.count);
    return shape.flops() / (peak * share_at(gpu.gemm_efficiency, one_product));
  }
  const double share = gemm_share(gpu, precision);
  const std::int64_t elements =
      shape.count * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  const double element_bytes = precision == Precision::kFp32 ? 4 : 2;
  return std::max(tiled_gemm_s(gpu, peak * share, shape),
                  memory_bound_s(gpu, element_bytes * static_cast<double>(elements)));
}

double attention_forward_s(const GpuSpec& gpu, const AttentionWork& work) {
  const double length = static_cast<double>(work.length);
  const double share =
      gpu.attention_efficiency.empty()
          ? share_at(kAttentionForwardShare, length) * small_head_share(work) * attention_scale(gpu)
          : share_at(gpu.attention_efficiency, length);
  return work.forward_flops() / (gpu.bf16_flops_per_s * share);
}

// Five products instead of two: 2.5 times the forward's FLOPs. A measured curve is of the forward;
// the backward then keeps the ratio of the documented curves.
double attention_backward_s(const GpuSpec& gpu, const AttentionWork& work) {
  const double length = static_cast<double>(work.length);
  const double over_forward =
      share_at(kAttentionForwardShare, length) / share_at(kAttentionBackwardShare, length);
  return 2.5 * attention_forward_s(gpu, work) * over_forward;
}

double memory_bound_s(const GpuSpec& gpu, double bytes) {
  return bytes / (gpu.memory_bytes_per_s * gpu.copy_efficiency.value_or(kCopyShare.value));
}

bool is_calibrated(const GpuSpec& gpu) {
  return !gpu.gemm_efficiency.empty() && !gpu.attention_efficiency.empty() &&
         gpu.copy_efficiency.has_value();
}

}  // namespace shardplan
