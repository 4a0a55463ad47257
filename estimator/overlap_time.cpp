#include "estimator/overlap_time.h"

#include <algorithm>

#include "estimator/efficiency.h"

namespace shardplan {
namespace {

// Inside an NVLink domain. Without a measurement a collective takes its SMs from the products and
// nothing else is known but on Hopper. What calibrate measures is our own trainer's NCCL, of few
// channels.
BesideRates rates_of(const GpuSpec& gpu, Carrier carrier) {
  const bool is_hopper = gpu.compute_capability >= 90 && gpu.compute_capability < 100;
  if (carrier == Carrier::kWideNccl && is_hopper) {
    return {.products = kProductsBesideFsdp.value, .collectives = kCollectivesBesideFsdp.value};
  }
  if (gpu.times && gpu.times->beside) {
    return *gpu.times->beside;
  }
  if (is_hopper) {
    return {.products = kProductsBesideHopper.value, .collectives = kCollectivesBesideHopper.value};
  }
  return gpu.num_sms > 0
             ? BesideRates{.products = 1 - kCollectiveSms.value / static_cast<double>(gpu.num_sms)}
             : BesideRates{};
}

}  // namespace

BesideRates beside_rates(const ClusterSpec& cluster, const GroupShape& group, Collective collective,
                         Carrier carrier) {
  const GpuSpec& gpu = cluster.gpu;
  if (carrier == Carrier::kCopies && gpu.times && gpu.times->copies.beside) {
    return *gpu.times->copies.beside;
  }
  const bool crosses_network = group.ranks_per_domain < group.size;
  BesideRates keep = rates_of(gpu, crosses_network ? Carrier::kNccl : carrier);
  if (crosses_network) {
    const double alone = rank_bytes_per_s(cluster, group, collective);
    keep.collectives = std::min(1.0, keep.collectives * domain_bytes_per_s(cluster) / alone);
  }
  return keep;
}

BesideRates in_turn(const BesideRates& first, double first_s, const BesideRates& second,
                    double second_s) {
  if (first_s == 0 || second_s == 0) {
    return first_s == 0 ? second : first;
  }
  const double first_beside_s = first_s / first.collectives;
  const double second_beside_s = second_s / second.collectives;
  const double all_s = first_beside_s + second_beside_s;
  return {.products = (first.products * first_beside_s + second.products * second_beside_s) / all_s,
          .collectives = (first_s + second_s) / all_s};
}

// The collective ends first: it runs for K / a, in which products do b K / a. Products end first:
// they run for C / b, and the rest of the collective follows at its own rate.
double beside_compute_s(const BesideRates& keep, double cost_s, double compute_s) {
  const double a = keep.collectives;
  const double b = keep.products;
  const bool hides_all = b * cost_s <= a * compute_s;
  const double added_s = hides_all ? cost_s / a * (1 - b) : cost_s - compute_s * (a + b - 1) / b;
  return std::min(added_s, cost_s);
}

double in_pieces_s(const BesideRates& keep, double cost_s, double compute_s, std::int64_t pieces) {
  const double beside = 1 - 1 / static_cast<double>(pieces);
  return (1 - beside) * cost_s + beside_compute_s(keep, beside * cost_s, beside * compute_s);
}

}  // namespace shardplan
