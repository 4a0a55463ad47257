#include "estimator/answer/step_limit.h"

#include <algorithm>
#include <limits>

#include "estimator/frameworks/framework.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/kernel_time.h"

namespace shardplan {
namespace {

constexpr std::int64_t kManyHeads = std::int64_t{1} << 40;  // of a call: the GPU is always full

// One rate for every size: curves are constant, and grids have one entry.
std::vector<CurvePoint> flat(double rate) {
  return {{.size = 1, .value = rate}};
}

double best_of(const std::vector<double>& rates) {
  return rates.empty() ? 0 : std::ranges::max(rates);
}

double best_of(const std::vector<CurvePoint>& curve) {
  double best = 0;
  for (const CurvePoint& point : curve) { best = std::max(best, point.value); }
  return best;
}

GemmGrid best_products(const GemmGrid& grid, const std::optional<double>& given) {
  const double rate =
      given.value_or(std::max({best_of(grid.forward), best_of(grid.input_gradient),
                               best_of(grid.weight_gradient), best_of(grid.accumulated)}));
  const std::vector<double> one = {rate};
  return {.m = {1},
          .n = {1},
          .k = {1},
          .forward = one,
          .input_gradient = one,
          .weight_gradient = one,
          .accumulated = one};
}

GroupedRates best_grouped(const GroupedRates& rates) {
  if (rates.forward.empty()) {
    return {};
  }
  const std::vector<CurvePoint> one = flat(std::max(
      {best_of(rates.forward), best_of(rates.input_gradient), best_of(rates.weight_gradient)}));
  return {.forward = one, .input_gradient = one, .weight_gradient = one};
}

// Of calls that fill the GPU, at every measured length up to the job's.
AttentionCurve best_attention(const GpuSpec& gpu, const AttentionCurve& curve,
                              std::int64_t length) {
  AttentionWork work = {.pairs = 1,
                        .heads = 1,
                        .qk_dim = curve.head_dim,
                        .v_dim = curve.head_dim,
                        .length = length,
                        .heads_of_call = kManyHeads};
  double forward = 0;
  double backward = 0;
  const auto try_length = [&](std::int64_t at) {
    work.length = at;
    forward = std::max(forward, work.forward_flops() / attention_forward_s(gpu, work));
    backward = std::max(backward, 2.5 * work.forward_flops() / attention_backward_s(gpu, work));
  };
  try_length(length);
  for (const std::vector<CurvePoint>* points : {&curve.forward, &curve.backward}) {
    for (const CurvePoint& point : *points) {
      if (point.size < static_cast<double>(length)) {
        try_length(static_cast<std::int64_t>(point.size));
      }
    }
  }
  return {.head_dim = curve.head_dim,
          .forward = flat(forward),
          .backward = flat(backward),
          .tokens = curve.tokens,
          .heads = curve.heads,
          .clock_over_products = curve.clock_over_products};
}

// Seconds in proportion to the bytes, as of the message that moved fastest.
CollectiveCurve best_collective(const CollectiveCurve& curve) {
  double s_per_byte = std::numeric_limits<double>::infinity();
  for (const CurvePoint& point : curve.seconds) {
    s_per_byte = std::min(s_per_byte, point.value / point.size);
  }
  return {.collective = curve.collective, .ranks = curve.ranks, .seconds = flat(s_per_byte)};
}

MeasuredTimes best_times(const GpuSpec& gpu, std::int64_t length,
                         const std::optional<double>& products_flops_per_s) {
  MeasuredTimes times = *gpu.times;
  times.gemm = best_products(times.gemm, products_flops_per_s);
  if (!times.gemm_fp8.m.empty()) {
    times.gemm_fp8 = best_products(times.gemm_fp8, std::nullopt);
  }
  times.grouped = best_grouped(times.grouped);
  for (AttentionCurve& curve : times.attention) { curve = best_attention(gpu, curve, length); }
  times.copy_bytes_per_s /= gpu.constants->fused_share;  // fused kernels as fast as a copy
  for (CollectiveCurve& curve : times.collectives) { curve = best_collective(curve); }
  times.beside = BesideRates{};
  for (CollectiveCurve& curve : times.copies.collectives) { curve = best_collective(curve); }
  times.copies.beside = BesideRates{};
  return times;
}

// All that communicates runs beside all that it can, whatever the framework's options say.
Overlaps all_overlaps(const Job& job) {
  return {.tp = TpOverlap::kPieces,
          .cp = CpOverlap::kAttention,
          .exchanges = ExchangeOverlap::kMicrobatches,
          .sends = true,
          .gathers = true,
          .reductions = true,
          .tp_pieces = job.sequence_length};
}

std::shared_ptr<const TimeConstants> best_constants(const TimeConstants& constants) {
  TimeConstants best = constants;
  best.piece_s = 0;
  return std::make_shared<const TimeConstants>(best);
}

}  // namespace

std::optional<Job> without_losses(const Job& job, std::optional<double> products_flops_per_s) {
  if (!job.cluster.gpu.times) {
    return std::nullopt;
  }
  Job best = job;
  best.cluster.gpu.times = best_times(job.cluster.gpu, job.sequence_length, products_flops_per_s);
  best.cluster.gpu.constants = best_constants(*job.cluster.gpu.constants);
  best.cluster.intra_node_latency_s = 0;
  best.cluster.inter_node_latency_s = 0;
  best.cluster.host_slowdown = 0;
  best.profile.choices.overlaps = all_overlaps;
  const auto set_fastest = framework_of(job.profile).set_fastest;
  if (set_fastest != nullptr) {
    set_fastest(best.profile);
  }
  return best;
}

}  // namespace shardplan
