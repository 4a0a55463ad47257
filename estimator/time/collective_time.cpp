// n members, k of them inside one NVLink domain, n / k domains. Rings and trees as NCCL builds them
// (src/graph/tuning.cc, ncclTopoTuneModel): one ring runs through all members, domain by domain,
// and its channels share the k links that leave a domain, so the narrower of the two counts.
#include "estimator/time/collective_time.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"

namespace shardplan {
namespace {

bool has_nvlink5(const GpuSpec& gpu) {
  return gpu.compute_capability >= 100 && gpu.compute_capability < 120;
}

double inside_bytes_per_s(const ClusterSpec& cluster) {
  const TimeConstants& of = *cluster.gpu.constants;
  const double share = has_nvlink5(cluster.gpu) ? of.nvlink5_share : of.nvlink_share;
  return cluster.gpu.nvlink_bytes_per_s * share;
}

double exchanged_bytes_per_s(const ClusterSpec& cluster) {
  return has_nvlink5(cluster.gpu)
             ? cluster.gpu.nvlink_bytes_per_s * cluster.gpu.constants->nvlink5_exchange_share
             : inside_bytes_per_s(cluster);
}

// Between NVLink domains: PCIe while the group stays inside a node, else the network.
double across_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group) {
  return group.ranks_per_node >= group.size
             ? cluster.gpu.pcie_bytes_per_s * cluster.gpu.constants->pcie_share
             : cluster.inter_node_bytes_per_s * cluster.gpu.constants->network_share;
}

double domains(const GroupShape& group) {
  return static_cast<double>(div_exact(group.size, group.ranks_per_domain));
}

// What every link of a ring carries a second, as seen by one channel's whole bundle.
double ring_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group) {
  const double k = static_cast<double>(group.ranks_per_domain);
  const double across = k * across_bytes_per_s(cluster, group);
  if (group.ranks_per_domain == group.size) {
    return inside_bytes_per_s(cluster);
  }
  return group.ranks_per_domain == 1 ? across : std::min(inside_bytes_per_s(cluster), across);
}

// n - 1 steps in a row: from domain to domain, the others inside.
double ring_latency_s(const ClusterSpec& cluster, const GroupShape& group) {
  const double across = domains(group) - 1;
  const double inside = static_cast<double>(group.size - 1) - across;
  return inside * cluster.intra_node_latency_s + across * cluster.inter_node_latency_s;
}

// nccl-tests: the bus factor of all-gather and reduce-scatter is (n - 1) / n.
CollectiveTime ring_gather(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const double n = static_cast<double>(group.size);
  return {.start_s = ring_latency_s(cluster, group),
          .bytes_s = bytes * (n - 1) / n / ring_bytes_per_s(cluster, group)};
}

// Up and down a binary tree of domains, a chain inside each; a step across has twice the latency of
// a ring's (28 against 14 us there).
double tree_all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const double k = static_cast<double>(group.ranks_per_domain);
  const double depth = std::log2(domains(group));
  return 2 * (bytes / (cluster.gpu.constants->tree_share * ring_bytes_per_s(cluster, group)) +
              (k - 1) * cluster.intra_node_latency_s + depth * 2 * cluster.inter_node_latency_s);
}

// Twice a gather's bytes over every link of a ring, or a tree. What a tree takes more than a ring's
// bytes counts as start.
CollectiveTime ring_or_tree(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const CollectiveTime gather = ring_gather(cluster, group, bytes);
  const double ring_s = 2 * gather.total_s();
  const bool has_tree = group.ranks_per_domain < group.size;
  const double least_s =
      has_tree ? std::min(ring_s, tree_all_reduce_s(cluster, group, bytes)) : ring_s;
  return {.start_s = least_s - 2 * gather.bytes_s, .bytes_s = 2 * gather.bytes_s};
}

// A rank sends 1 / n of its bytes to each member, k - 1 of them inside its domain; all messages are
// on their way together, as NCCL groups them (src/enqueue.cc, up to 8 a batch on each channel).
CollectiveTime exchange(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const double n = static_cast<double>(group.size);
  const double k = static_cast<double>(group.ranks_per_domain);
  const double inside =
      group.ranks_per_domain > 1 ? bytes * (k - 1) / n / exchanged_bytes_per_s(cluster) : 0;
  const double across = group.ranks_per_domain < group.size
                            ? bytes * (n - k) / n / across_bytes_per_s(cluster, group)
                            : 0;
  return {.start_s = n > k ? cluster.inter_node_latency_s : cluster.intra_node_latency_s,
          .bytes_s = std::max(inside, across)};
}

CollectiveTime send(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  return group.ranks_per_domain == group.size
             ? CollectiveTime{.start_s = cluster.intra_node_latency_s,
                              .bytes_s = bytes / inside_bytes_per_s(cluster)}
             : CollectiveTime{.start_s = cluster.inter_node_latency_s,
                              .bytes_s = bytes / across_bytes_per_s(cluster, group)};
}

CollectiveTime documented(const ClusterSpec& cluster, const GroupShape& group,
                          Collective collective, double bytes) {
  if (collective == Collective::kSend) {
    return send(cluster, group, bytes);
  }
  CollectiveTime time = collective == Collective::kAllToAll    ? exchange(cluster, group, bytes)
                        : collective == Collective::kAllReduce ? ring_or_tree(cluster, group, bytes)
                                                               : ring_gather(cluster, group, bytes);
  time.start_s += cluster.gpu.constants->collective_launch_s;
  return time;
}

// What crosses a rank's link, over the bytes of the whole tensor: what nccl-tests calls the factor
// of the bus bandwidth.
double link_share(Collective collective, double n) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return (n - 1) / n;
    case Collective::kAllReduce: return 2 * (n - 1) / n;
    case Collective::kSend: return 1;
  }
  throw std::logic_error("link_share: unknown collective");
}

// Straight lines between the logarithms of size and seconds; below the smallest message its time,
// beyond the largest its rate.
double seconds_at(const std::vector<CurvePoint>& curve, double bytes) {
  if (bytes <= curve.front().size) {
    return curve.front().value;
  }
  for (std::size_t i = 1; i < curve.size(); ++i) {
    if (bytes <= curve[i].size) {
      const CurvePoint& a = curve[i - 1];
      const CurvePoint& b = curve[i];
      const double weight = std::log(bytes / a.size) / std::log(b.size / a.size);
      return std::exp((1 - weight) * std::log(a.value) + weight * std::log(b.value));
    }
  }
  return curve.back().value * bytes / curve.back().size;
}

// Of as many ranks, or of the most that are fewer, or of the fewest; nullptr: not measured.
const CollectiveCurve* nearest_curve(const std::vector<CollectiveCurve>& curves,
                                     Collective collective, std::int64_t ranks) {
  const CollectiveCurve* chosen = nullptr;
  for (const CollectiveCurve& curve : curves) {
    if (curve.collective == collective && (chosen == nullptr || curve.ranks <= ranks)) {
      chosen = &curve;
    }
  }
  return chosen;
}

// Seconds for the bytes that cross a link in a group of n ranks.
double seconds_of_ranks(const CollectiveCurve& curve, double n, double bytes) {
  const double measured_n = number(curve.ranks);
  return seconds_at(curve.seconds, bytes * link_share(curve.collective, n) /
                                       link_share(curve.collective, measured_n));
}

// By copy engines, which write to all members at once: no steps. What is summed in parts is
// exchanged as by an all-to-all, or, where that was not measured, as what is gathered.
const CollectiveCurve* copies_curve(const ClusterSpec& cluster, const GroupShape& group,
                                    Collective collective) {
  if (!cluster.gpu.times || group.ranks_per_domain < group.size) {
    return nullptr;
  }
  const std::vector<CollectiveCurve>& curves = cluster.gpu.times->copies.collectives;
  const bool sums = collective == Collective::kReduceScatter;
  const CollectiveCurve* const curve =
      nearest_curve(curves, sums ? Collective::kAllToAll : collective, group.size);
  return sums && curve == nullptr ? nearest_curve(curves, Collective::kAllGather, group.size)
                                  : curve;
}

// Of a group inside an NVLink domain, where this GPU's links were measured: from the nearest curve,
// by the bytes that cross a link and, of NCCL's rings, a step more or less for every rank more or
// less, two of an all-reduce. Messages of an all-to-all are on their way together.
double nccl_s(const ClusterSpec& cluster, const GroupShape& group, const CollectiveCurve& curve,
              double bytes) {
  const double n = number(group.size);
  const Collective collective = curve.collective;
  const bool is_ring = collective != Collective::kAllToAll && collective != Collective::kSend;
  const double steps = !is_ring ? 0 : collective == Collective::kAllReduce ? 2 : 1;
  return std::max(0.0, seconds_of_ranks(curve, n, bytes) +
                           steps * (n - number(curve.ranks)) * cluster.intra_node_latency_s);
}

// The smallest message measured is all start.
CollectiveTime divided(double smallest_s, double total_s) {
  const double start_s = std::min(smallest_s, total_s);
  return {.start_s = start_s, .bytes_s = total_s - start_s};
}

std::optional<CollectiveTime> measured(const ClusterSpec& cluster, const GroupShape& group,
                                       Collective collective, double bytes, Carrier carrier) {
  if (carrier == Carrier::kCopies) {
    if (const CollectiveCurve* const curve = copies_curve(cluster, group, collective)) {
      const double n = number(group.size);
      return divided(seconds_of_ranks(*curve, n, 0), seconds_of_ranks(*curve, n, bytes));
    }
  }
  const CollectiveCurve* const curve =
      is_measured(cluster, group)
          ? nearest_curve(cluster.gpu.times->collectives, collective, group.size)
          : nullptr;
  if (curve == nullptr) {
    return std::nullopt;
  }
  return divided(nccl_s(cluster, group, *curve, 0), nccl_s(cluster, group, *curve, bytes));
}

}  // namespace

double domain_bytes_per_s(const ClusterSpec& cluster) {
  return cluster.gpu.nvlink_bytes_per_s > 0
             ? inside_bytes_per_s(cluster)
             : cluster.gpu.pcie_bytes_per_s * cluster.gpu.constants->pcie_share;
}

double rank_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group,
                        Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllReduce: return ring_bytes_per_s(cluster, group);
    case Collective::kAllToAll: {
      const bool shares_domain = group.ranks_per_domain > 1;
      const double across = across_bytes_per_s(cluster, group);
      return group.ranks_per_domain == group.size ? inside_bytes_per_s(cluster)
             : shares_domain                      ? std::min(inside_bytes_per_s(cluster), across)
                                                  : across;
    }
    case Collective::kSend:
      return group.ranks_per_domain < group.size ? across_bytes_per_s(cluster, group)
                                                 : inside_bytes_per_s(cluster);
  }
  throw std::logic_error("rank_bytes_per_s: unknown collective");
}

Carrier carrier_of(bool by_copies, const GroupShape& group) {
  const bool reaches_all = group.ranks_per_node == group.size &&
                           group.ranks_per_domain == group.size && group.size <= kMaxPeers;
  return by_copies && reaches_all ? Carrier::kCopies : Carrier::kNccl;
}

bool is_measured(const ClusterSpec& cluster, const GroupShape& group) {
  return cluster.gpu.times && !cluster.gpu.times->collectives.empty() &&
         group.ranks_per_domain == group.size;
}

// What is summed in parts by a carrier that was not measured takes what a gather by NCCL takes.
CollectiveTime collective_time(const ClusterSpec& cluster, const GroupShape& group,
                               Collective collective, double bytes, Carrier carrier) {
  if (group.size == 1) {
    return {};
  }
  if (const auto time = measured(cluster, group, collective, bytes, carrier)) {
    return *time;
  }
  return collective == Collective::kReduceScatter
             ? collective_time(cluster, group, Collective::kAllGather, bytes)
             : documented(cluster, group, collective, bytes);
}

double all_gather_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                    Carrier carrier) {
  return collective_time(cluster, group, Collective::kAllGather, bytes, carrier).total_s();
}

double reduce_scatter_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                        Carrier carrier) {
  return collective_time(cluster, group, Collective::kReduceScatter, bytes, carrier).total_s();
}

double all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  return collective_time(cluster, group, Collective::kAllReduce, bytes).total_s();
}

double all_to_all_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  return collective_time(cluster, group, Collective::kAllToAll, bytes).total_s();
}

double send_s(const ClusterSpec& cluster, const GroupShape& group, double bytes, Carrier carrier) {
  return collective_time(cluster, group, Collective::kSend, bytes, carrier).total_s();
}

}  // namespace shardplan
