#include "estimator/time/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "estimator/plan/time_constants.h"
#include "estimator/plan/units.h"

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

// Whole waves of tiles over the SMs, each as long as its k plus prologue; the best tile counts. A
// product that fills a wave badly pays for the whole wave.
double tiled_gemm_s(const GpuSpec& gpu, double flops_per_s, const ProductShape& shape) {
  const std::int64_t sms = std::max<std::int64_t>(1, gpu.num_sms);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const std::int64_t tiles =
        shape.count * div_ceil(shape.m, tile.rows) * div_ceil(shape.n, tile.columns);
    const double flops_of_tile = 2.0 * static_cast<double>(tile.rows * tile.columns) *
                                 (static_cast<double>(shape.k) + gpu.constants->gemm_prologue);
    const double waves = static_cast<double>(div_ceil(tiles, sms));
    best = std::min(best,
                    waves * flops_of_tile * static_cast<double>(sms) / (flops_per_s * tile.rate));
  }
  return best;
}

// Of a product without end, inside full waves of tiles.
double product_flops_per_s(const GpuSpec& gpu, Precision precision) {
  switch (precision) {
    case Precision::kFp32: return gpu.fp32_flops_per_s * gpu.constants->gemm_share;
    case Precision::kBf16:
    case Precision::kFp16:
      return gpu.sustained ? gpu.sustained->bf16_flops_per_s
                           : gpu.bf16_flops_per_s * gpu.constants->gemm_share;
    case Precision::kFp8:
      return gpu.sustained ? gpu.sustained->fp8_flops_per_s
                           : gpu.fp8_flops_per_s * gpu.constants->fp8_gemm_share;
  }
  throw std::logic_error("product_flops_per_s: unknown precision");
}

double attention_scale(const GpuSpec& gpu) {
  return gpu.sustained ? gpu.sustained->attention_of_curve : gpu.constants->attention_load;
}

// Where a size stands between two of an ascending list: (1 - weight) of the one, weight of the
// next.
struct Place {
  std::size_t first = 0;
  double weight = 0;
};
Place place_of(const std::vector<double>& sizes, double size) {
  if (size <= sizes.front() || sizes.size() == 1) {
    return {};
  }
  if (size >= sizes.back()) {
    return {.first = sizes.size() - 2, .weight = 1};
  }
  const auto next = std::ranges::upper_bound(sizes, size);
  const std::size_t first = static_cast<std::size_t>(next - sizes.begin()) - 1;
  return {.first = first, .weight = std::log(size / sizes[first]) / std::log(*next / sizes[first])};
}

std::span<const double> rates_of(const GemmGrid& grid, GemmPass pass) {
  switch (pass) {
    case GemmPass::kForward: return grid.forward;
    case GemmPass::kInputGradient: return grid.input_gradient;
    case GemmPass::kWeightGradient: return grid.weight_gradient;
    case GemmPass::kAccumulated:
      return grid.accumulated.empty() ? grid.weight_gradient : grid.accumulated;
  }
  throw std::logic_error("rates_of: unknown pass");
}

// nullptr: not measured.
const GemmGrid* measured_products(const GpuSpec& gpu, Precision precision) {
  if (!gpu.times) {
    return nullptr;
  }
  switch (precision) {
    case Precision::kFp32: return nullptr;
    case Precision::kBf16:
    case Precision::kFp16: return &gpu.times->gemm;
    case Precision::kFp8: return gpu.times->gemm_fp8.m.empty() ? nullptr : &gpu.times->gemm_fp8;
  }
  throw std::logic_error("measured_products: unknown precision");
}

// Products of one launch fill the GPU together, so their rows count together.
double measured_gemm_s(const GemmGrid& grid, const ProductShape& shape) {
  const double m = static_cast<double>(shape.m) * static_cast<double>(shape.count);
  const double n = static_cast<double>(shape.n);
  const double k = static_cast<double>(shape.k);
  const Place at_m = place_of(grid.m, m);
  const Place at_n = place_of(grid.n, n);
  const Place at_k = place_of(grid.k, k);
  const std::span<const double> rates = rates_of(grid, shape.pass);
  double log_rate = 0;
  for (const std::size_t i : {0U, 1U}) {
    for (const std::size_t j : {0U, 1U}) {
      for (const std::size_t l : {0U, 1U}) {
        const double weight = (i == 0 ? 1 - at_m.weight : at_m.weight) *
                              (j == 0 ? 1 - at_n.weight : at_n.weight) *
                              (l == 0 ? 1 - at_k.weight : at_k.weight);
        if (weight > 0) {
          const std::size_t row = (at_m.first + i) * grid.n.size() + at_n.first + j;
          log_rate += weight * std::log(rates[row * grid.k.size() + at_k.first + l]);
        }
      }
    }
  }
  return 2 * std::max(m, grid.m.front()) * std::max(n, grid.n.front()) *
         std::max(k, grid.k.front()) / std::exp(log_rate);
}

// Heads as wide as the work's, or else the narrowest that are wider, or the widest. Heads wider
// than 256 run by another kernel (PyTorch's sdp_utils.cpp), whose curve is none of narrower ones.
const AttentionCurve& curve_for(const std::vector<AttentionCurve>& curves, std::int64_t head_dim) {
  constexpr std::int64_t kWidestFused = 256;
  const AttentionCurve* widest = &curves.front();
  for (const AttentionCurve& curve : curves) {
    if (head_dim <= kWidestFused && curve.head_dim > kWidestFused) {
      break;
    }
    widest = &curve;
    if (curve.head_dim >= head_dim) {
      break;
    }
  }
  return *widest;
}

// A call ends when its last tiles do: over the mean of the multiprocessors it takes a time longer
// that depends on the length alone. So seconds a FLOP are linear in one over the number of heads,
// and two numbers of heads say all. Shorter calls than those measured take that time for fewer
// FLOPs of a head.
double attention_rate(const AttentionCurve& curve, const std::vector<CurvePoint>& many,
                      const std::vector<CurvePoint>& few, double length, double heads) {
  const double rate = value_at(many, length);
  if (few.empty() || heads == 0) {
    return rate;
  }
  const double many_heads =
      static_cast<double>(curve.heads) * std::max(1.0, static_cast<double>(curve.tokens) / length);
  const auto beyond = [&](double of_call) { return 1 / of_call - 1 / many_heads; };
  const double at_few = beyond(static_cast<double>(curve.few_heads));
  const double shorter = std::max(1.0, few.front().size / length);
  const double slower_s = shorter * shorter * std::max(0.0, 1 / value_at(few, length) - 1 / rate);
  return 1 / (1 / rate + slower_s * beyond(heads) / at_few);
}

// Rows shorter than any measured take the time of the shortest, less that of the keys they do not
// have: what a key adds is told by the two shortest.
double share_of_shortest(std::span<const CurvePoint> curve, double length) {
  const CurvePoint& first = curve.front();
  const double proportional = length / first.size;
  if (curve.size() == 1) {
    return proportional;
  }
  const double row_s = first.size / first.value;
  const double key_s = (curve[1].size / curve[1].value - row_s) / (curve[1].size - first.size);
  return std::max(proportional, 1 - key_s * (first.size - length) / row_s);
}

// A window's tile of queries computes all keys that one of its rows sees: those of a row and a
// whole tile more, where a triangle's, which ends at the diagonal as well, computes half a tile
// more. So a window runs as triangles that see half a tile more keys in the mean and fill the GPU,
// but that all its tiles are of one length.
template <class RateAt>
double band_s(const GpuSpec& gpu, const AttentionWork& work, std::span<const CurvePoint> curve,
              const RateAt& rate_at) {
  const double length = static_cast<double>(work.length);
  const double window = static_cast<double>(work.window);
  const double seen = window * length - window * window / 2;
  const double computed = seen + kAttentionTileRows / 2 * (length - window);
  const double of_rows = 2 * computed / length;
  const double timed = std::max(of_rows, curve.front().size);
  const double timed_s =
      work.forward_flops() * computed / seen * timed / of_rows / rate_at(timed, 0);
  const double busy = busy_share(gpu, length, static_cast<double>(work.heads_of_call));
  return (of_rows < timed ? share_of_shortest(curve, of_rows) : 1) * timed_s / busy;
}

// `rate_at`: FLOP/s by length and heads of a call, 0: enough to fill the GPU. A window is no slower
// than its whole sequence.
template <class RateAt>
double forward_s(const GpuSpec& gpu, const AttentionWork& work, std::span<const CurvePoint> curve,
                 const RateAt& rate_at) {
  const double length = static_cast<double>(work.length);
  const double rate = rate_at(length, static_cast<double>(work.heads_of_call));
  if (work.window == 0) {
    return work.forward_flops() / rate;
  }
  const double unseen = (length - static_cast<double>(work.window)) / length;
  const double whole_s = work.forward_flops() / (1 - unseen * unseen) / rate;
  return std::min(band_s(gpu, work, curve, rate_at), whole_s);
}

double small_head_share(const GpuSpec& gpu, const AttentionWork& work) {
  return work.qk_dim <= 64 ? gpu.constants->small_head_share : 1;
}

// FlashAttention 2 knows nothing of the tensor cores that came with compute capability 9.
bool is_flash2_of_before(const GpuSpec& gpu, const AttentionWork& work) {
  return work.is_flash2 && gpu.compute_capability >= 90;
}

double flash2_share(const GpuSpec& gpu, const AttentionWork& work, double share) {
  return is_flash2_of_before(gpu, work) ? share : 1;
}

// It reaches with heads of 64 what it does with 128: 264 TFLOP/s forward and 238 backward of 8192
// tokens, 251 and 218 of 4096 (nanotron on H200, profiles of the runs in
// data/measured/nanotron_h200.jsonl).
const AttentionCurve& curve_for(const GpuSpec& gpu, const AttentionWork& work) {
  constexpr std::int64_t kFullHead = 128;
  return curve_for(gpu.times->attention, is_flash2_of_before(gpu, work) ? kFullHead : work.qk_dim);
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

double gemm_s(const GpuSpec& gpu, Precision precision, const ProductShape& shape) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0 || shape.count == 0) {
    return 0;
  }
  const std::int64_t elements =
      shape.count * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  const double element_bytes = precision == Precision::kFp32 ? 4 : 2;
  const double moving_s = memory_bound_s(gpu, element_bytes * static_cast<double>(elements));
  if (const GemmGrid* const grid = measured_products(gpu, precision)) {
    return std::max(measured_gemm_s(*grid, shape), moving_s);
  }
  return std::max(tiled_gemm_s(gpu, product_flops_per_s(gpu, precision), shape), moving_s);
}

double tf32_gemm_s(const GpuSpec& gpu, const ProductShape& shape) {
  constexpr std::int64_t kAmpere = 80;
  const bool is_empty = shape.m == 0 || shape.n == 0 || shape.k == 0 || shape.count == 0;
  if (is_empty || gpu.compute_capability < kAmpere) {
    return gemm_s(gpu, Precision::kFp32, shape);
  }
  const double rate = product_flops_per_s(gpu, Precision::kBf16) / 2;
  const double bytes =
      4 * static_cast<double>(shape.count *
                              (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n));
  return std::max(tiled_gemm_s(gpu, rate, shape), memory_bound_s(gpu, bytes));
}

// In fp8 every weight gradient was.
bool measures_accumulation(const GpuSpec& gpu, Precision precision) {
  const GemmGrid* const grid = measured_products(gpu, precision);
  return grid != nullptr && (precision == Precision::kFp8 || !grid->accumulated.empty());
}

bool measures_grouped(const GpuSpec& gpu) {
  return gpu.times && !gpu.times->grouped.forward.empty();
}

double grouped_gemm_s(const GpuSpec& gpu, const ProductShape& shape, std::int64_t rows) {
  const GroupedRates& rates = gpu.times->grouped;
  const std::vector<CurvePoint>& curve = shape.pass == GemmPass::kForward ? rates.forward
                                         : shape.pass == GemmPass::kInputGradient
                                             ? rates.input_gradient
                                             : rates.weight_gradient;
  return shape.flops() / value_at(curve, static_cast<double>(rows));
}

double busy_share(const GpuSpec& gpu, double queries, double heads) {
  if (gpu.num_sms == 0 || heads == 0) {
    return 1;
  }
  const double sms = static_cast<double>(gpu.num_sms);
  const double tiles = queries / kAttentionTileRows;
  const double waves = std::ceil(std::ceil(tiles) * heads / sms);
  return tiles * heads / sms / waves;
}

double attention_forward_s(const GpuSpec& gpu, const AttentionWork& work) {
  const double slower = flash2_share(gpu, work, gpu.constants->flash2_forward_share);
  if (gpu.times) {
    const AttentionCurve& curve = curve_for(gpu, work);
    return forward_s(gpu, work, curve.forward, [&](double length, double heads) {
      return attention_rate(curve, curve.forward, curve.few.forward, length, heads) * slower;
    });
  }
  const double peak =
      gpu.bf16_flops_per_s * small_head_share(gpu, work) * attention_scale(gpu) * slower;
  const std::span<const CurvePoint> share = gpu.constants->attention_forward_share;
  return forward_s(gpu, work, share,
                   [&](double length, double) { return peak * value_at(share, length); });
}

// Five products instead of two: 2.5 times the forward's FLOPs.
double attention_backward_s(const GpuSpec& gpu, const AttentionWork& work) {
  const double slower = flash2_share(gpu, work, gpu.constants->flash2_backward_share);
  if (gpu.times) {
    const AttentionCurve& curve = curve_for(gpu, work);
    return 2.5 * forward_s(gpu, work, curve.backward, [&](double length, double heads) {
             return attention_rate(curve, curve.backward, curve.few.backward, length, heads) *
                    slower;
           });
  }
  const double peak =
      gpu.bf16_flops_per_s * small_head_share(gpu, work) * attention_scale(gpu) * slower;
  const std::span<const CurvePoint> share = gpu.constants->attention_backward_share;
  return 2.5 * forward_s(gpu, work, share,
                         [&](double length, double) { return peak * value_at(share, length); });
}

bool measures_clocks(const GpuSpec& gpu) {
  return gpu.times && gpu.times->copy_clock_over_products.has_value();
}

// The time of a cycle is the mean over the kinds of kernels, each for its share of the time.
// Attention was measured behind products (Stopwatch in validator/cuda/stopwatch.h).
ClockFactors clock_factors(const GpuSpec& gpu, const KernelMix& mix, std::int64_t qk_dim) {
  const double whole_s = mix.products_s + mix.attention_s + mix.memory_bound_s + mix.light_s;
  if (!measures_clocks(gpu) || whole_s == 0) {
    return {};
  }
  constexpr double kShareWhenMeasured = 1 / (1 + kLoadOverCall);
  const double attention =
      1 / curve_for(gpu.times->attention, qk_dim).clock_over_products.value_or(1);
  const double limited = (mix.products_s + mix.attention_s * attention +
                          mix.memory_bound_s / *gpu.times->copy_clock_over_products +
                          mix.light_s * gpu.constants->light_cycle) /
                         whole_s;
  const double cycle = std::max(limited, 1 / gpu.constants->top_clock);
  return {.products = cycle,
          .attention = cycle / (1 - kShareWhenMeasured + kShareWhenMeasured * attention)};
}

double memory_bound_s(const GpuSpec& gpu, double bytes) {
  return bytes / (gpu.times ? gpu.times->copy_bytes_per_s * gpu.constants->fused_share
                            : gpu.memory_bytes_per_s * gpu.constants->copy_share);
}

double value_at(std::span<const CurvePoint> curve, double size) {
  if (size <= curve.front().size) {
    return curve.front().value;
  }
  for (std::size_t i = 1; i < curve.size(); ++i) {
    if (size <= curve[i].size) {
      const CurvePoint& a = curve[i - 1];
      const CurvePoint& b = curve[i];
      return a.value + (b.value - a.value) * std::log(size / a.size) / std::log(b.size / a.size);
    }
  }
  return curve.back().value;
}

bool is_measured(const GpuSpec& gpu, Precision precision) {
  return measured_products(gpu, precision) != nullptr;
}

bool is_calibrated(const GpuSpec& gpu) {
  return gpu.times.has_value();
}

}  // namespace shardplan
