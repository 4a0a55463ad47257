#include "estimator/overlap_time.h"

#include <algorithm>

#include "estimator/efficiency.h"

namespace shardplan {
namespace {

// a and b are what the collective and the products keep. The collective ends first: it runs for
// K / a, in which products do b K / a. Products end first: they run for C / b, and the rest of the
// collective follows at its own rate.
double measured_s(const BesideRates& keep, double cost_s, double compute_s) {
  const double a = keep.collectives;
  const double b = keep.products;
  const bool hides_all = b * cost_s <= a * compute_s;
  const double added_s = hides_all ? cost_s / a * (1 - b) : cost_s - compute_s * (a + b - 1) / b;
  return std::min(added_s, cost_s);
}

}  // namespace

double beside_compute_s(const GpuSpec& gpu, double cost_s, double compute_s) {
  if (gpu.times && gpu.times->beside) {
    return measured_s(*gpu.times->beside, cost_s, compute_s);
  }
  const double share =
      gpu.num_sms > 0 ? kCollectiveSms.value / static_cast<double>(gpu.num_sms) : 0;
  return std::max(0.0, cost_s - compute_s) + share * std::min(cost_s, compute_s);
}

double in_pieces_s(const GpuSpec& gpu, double cost_s, double compute_s, std::int64_t pieces) {
  const double beside = 1 - 1 / static_cast<double>(pieces);
  return (1 - beside) * cost_s + beside_compute_s(gpu, beside * cost_s, beside * compute_s);
}

}  // namespace shardplan
