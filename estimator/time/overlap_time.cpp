#include "estimator/time/overlap_time.h"

#include <algorithm>

#include "estimator/plan/time_constants.h"

namespace shardplan {

BesideRates rates_within_domain(const GpuSpec& gpu, Carrier carrier) {
  const TimeConstants& of = *gpu.constants;
  const bool is_hopper = gpu.compute_capability >= 90 && gpu.compute_capability < 100;
  if (carrier == Carrier::kWideNccl && is_hopper) {
    return {.products = of.products_beside_fsdp, .collectives = of.collectives_beside_fsdp};
  }
  if (gpu.times && gpu.times->beside) {
    return *gpu.times->beside;
  }
  if (is_hopper) {
    return {.products = of.products_beside_hopper, .collectives = of.collectives_beside_hopper};
  }
  return gpu.num_sms > 0
             ? BesideRates{.products = 1 - of.collective_sms / static_cast<double>(gpu.num_sms)}
             : BesideRates{};
}

BesideRates beside_rates(const ClusterSpec& cluster, const GroupShape& group, Collective collective,
                         Carrier carrier) {
  const GpuSpec& gpu = cluster.gpu;
  if (carrier == Carrier::kCopies && gpu.times && gpu.times->copies.beside) {
    return *gpu.times->copies.beside;
  }
  const bool crosses_network = group.ranks_per_domain < group.size;
  BesideRates keep = rates_within_domain(gpu, crosses_network ? Carrier::kNccl : carrier);
  if (crosses_network) {
    const double alone = rank_bytes_per_s(cluster, group, collective);
    keep.collectives = std::min(1.0, keep.collectives * domain_bytes_per_s(cluster) / alone);
  }
  return keep;
}

BesideCost operator+(const BesideCost& a, const BesideCost& b) {
  return {.alone_s = a.alone_s + b.alone_s,
          .beside_s = a.beside_s + b.beside_s,
          .lost_s = a.lost_s + b.lost_s};
}

BesideCost operator*(double times, const BesideCost& cost) {
  return {.alone_s = times * cost.alone_s,
          .beside_s = times * cost.beside_s,
          .lost_s = times * cost.lost_s};
}

BesideCost beside_cost(const BesideRates& keep, const CollectiveTime& alone) {
  const double beside_s = alone.start_s + alone.bytes_s / keep.collectives;
  return {
      .alone_s = alone.total_s(), .beside_s = beside_s, .lost_s = (1 - keep.products) * beside_s};
}

BesideCost collective_cost(const ClusterSpec& cluster, const GroupShape& group,
                           Collective collective, double bytes, Carrier carrier) {
  return beside_cost(beside_rates(cluster, group, collective, carrier),
                     collective_time(cluster, group, collective, bytes, carrier));
}

// Where products end first, that share of the communication has run which they had work for.
double beside_compute_s(const BesideCost& cost, double compute_s) {
  const double products_s = cost.beside_s - cost.lost_s;
  const double share = products_s <= compute_s ? 1 : compute_s / products_s;
  return std::min(share * cost.lost_s + (1 - share) * cost.alone_s, cost.alone_s);
}

double in_pieces_s(const BesideCost& cost, double compute_s, std::int64_t pieces) {
  const double beside = 1 - 1 / static_cast<double>(pieces);
  return (1 - beside) * cost.alone_s + beside_compute_s(beside * cost, beside * compute_s);
}

}  // namespace shardplan
