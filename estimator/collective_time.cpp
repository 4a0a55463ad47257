// n members, k of them inside one NVLink domain, n / k domains. Rings and trees as NCCL builds them
// (src/graph/tuning.cc, ncclTopoTuneModel): one ring runs through all members, domain by domain,
// and its channels share the k links that leave a domain, so the narrower of the two counts.
#include "estimator/collective_time.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

#include "estimator/efficiency.h"
#include "estimator/number.h"

namespace shardplan {
namespace {

double inside_bytes_per_s(const ClusterSpec& cluster) {
  return cluster.gpu.nvlink_bytes_per_s * kNvlinkShare.value;
}

// Between NVLink domains: PCIe while the group stays inside a node, else the network.
double across_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group) {
  return group.ranks_per_node >= group.size ? cluster.gpu.pcie_bytes_per_s * kPcieShare.value
                                            : cluster.inter_node_bytes_per_s * kNetworkShare.value;
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

// Twice (n - 1) / n of the bytes over every link of a ring.
double ring_all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const double n = static_cast<double>(group.size);
  return 2 *
         (bytes * (n - 1) / n / ring_bytes_per_s(cluster, group) + ring_latency_s(cluster, group));
}

// Up and down a binary tree of domains, a chain inside each: 0.92 of the ring's bandwidth, and a
// step across has twice the latency of a ring's (28 against 14 us there).
double tree_all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  const double k = static_cast<double>(group.ranks_per_domain);
  const double depth = std::log2(domains(group));
  return 2 * (bytes / (0.92 * ring_bytes_per_s(cluster, group)) +
              (k - 1) * cluster.intra_node_latency_s + depth * 2 * cluster.inter_node_latency_s);
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
std::optional<double> copied_s(const ClusterSpec& cluster, const GroupShape& group,
                               Collective collective, double bytes) {
  if (!cluster.gpu.times || group.ranks_per_domain < group.size) {
    return std::nullopt;
  }
  const std::vector<CollectiveCurve>& curves = cluster.gpu.times->copies.collectives;
  const bool sums = collective == Collective::kReduceScatter;
  const CollectiveCurve* curve =
      nearest_curve(curves, sums ? Collective::kAllToAll : collective, group.size);
  if (sums && curve == nullptr) {
    curve = nearest_curve(curves, Collective::kAllGather, group.size);
  }
  return curve != nullptr ? std::optional(seconds_of_ranks(*curve, number(group.size), bytes))
                          : std::nullopt;
}

// Of a group inside an NVLink domain, where this GPU's links were measured: from the nearest curve,
// by the bytes that cross a link and, of NCCL's rings, a step more or less for every rank more or
// less, two of an all-reduce. Messages of an all-to-all are on their way together.
std::optional<double> measured_s(const ClusterSpec& cluster, const GroupShape& group,
                                 Collective collective, double bytes,
                                 Carrier carrier = Carrier::kNccl) {
  if (carrier == Carrier::kCopies) {
    if (const auto seconds = copied_s(cluster, group, collective, bytes)) {
      return seconds;
    }
  }
  if (!is_measured(cluster, group)) {
    return std::nullopt;
  }
  const CollectiveCurve* chosen =
      nearest_curve(cluster.gpu.times->collectives, collective, group.size);
  if (chosen == nullptr) {
    return std::nullopt;
  }
  const double n = number(group.size);
  const double measured_n = number(chosen->ranks);
  const bool is_ring = collective != Collective::kAllToAll && collective != Collective::kSend;
  const double steps = !is_ring ? 0 : collective == Collective::kAllReduce ? 2 : 1;
  return std::max(0.0, seconds_of_ranks(*chosen, n, bytes) +
                           steps * (n - measured_n) * cluster.intra_node_latency_s);
}

}  // namespace

double domain_bytes_per_s(const ClusterSpec& cluster) {
  return cluster.gpu.nvlink_bytes_per_s > 0 ? inside_bytes_per_s(cluster)
                                            : cluster.gpu.pcie_bytes_per_s * kPcieShare.value;
}

double rank_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group,
                        Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllReduce: return ring_bytes_per_s(cluster, group);
    case Collective::kAllToAll:
    case Collective::kSend:
      return group.ranks_per_domain < group.size ? across_bytes_per_s(cluster, group)
                                                 : inside_bytes_per_s(cluster);
  }
  throw std::logic_error("rank_bytes_per_s: unknown collective");
}

Carrier carrier_of(const Job& job, const GroupShape& group) {
  const bool reaches_all = group.ranks_per_node == group.size &&
                           group.ranks_per_domain == group.size && group.size <= kMaxPeers;
  return job.profile.memory_model == MemoryModel::kNative && reaches_all ? Carrier::kCopies
                                                                         : Carrier::kNccl;
}

bool is_measured(const ClusterSpec& cluster, const GroupShape& group) {
  return cluster.gpu.times && !cluster.gpu.times->collectives.empty() &&
         group.ranks_per_domain == group.size;
}

// nccl-tests: the bus factor of all-gather and reduce-scatter is (n - 1) / n.
double all_gather_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                    Carrier carrier) {
  if (group.size == 1) {
    return 0;
  }
  if (const auto seconds = measured_s(cluster, group, Collective::kAllGather, bytes, carrier)) {
    return *seconds;
  }
  const double n = static_cast<double>(group.size);
  return kCollectiveLaunch.value + ring_latency_s(cluster, group) +
         bytes * (n - 1) / n / ring_bytes_per_s(cluster, group);
}

double reduce_scatter_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                        Carrier carrier) {
  const auto seconds = group.size > 1
                           ? measured_s(cluster, group, Collective::kReduceScatter, bytes, carrier)
                           : std::nullopt;
  return seconds ? *seconds : all_gather_s(cluster, group, bytes);
}

double all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  if (group.size == 1) {
    return 0;
  }
  if (const auto seconds = measured_s(cluster, group, Collective::kAllReduce, bytes)) {
    return *seconds;
  }
  const double ring = ring_all_reduce_s(cluster, group, bytes);
  const bool has_tree = group.ranks_per_domain < group.size;
  return kCollectiveLaunch.value +
         (has_tree ? std::min(ring, tree_all_reduce_s(cluster, group, bytes)) : ring);
}

// A rank sends 1 / n of its bytes to each member, k - 1 of them inside its domain; all messages are
// on their way together, as NCCL groups them (src/enqueue.cc, up to 8 a batch on each channel).
double all_to_all_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  if (group.size == 1) {
    return 0;
  }
  if (const auto seconds = measured_s(cluster, group, Collective::kAllToAll, bytes)) {
    return *seconds;
  }
  const double n = static_cast<double>(group.size);
  const double k = static_cast<double>(group.ranks_per_domain);
  const double inside =
      group.ranks_per_domain > 1 ? bytes * (k - 1) / n / inside_bytes_per_s(cluster) : 0;
  const double across = group.ranks_per_domain < group.size
                            ? bytes * (n - k) / n / across_bytes_per_s(cluster, group)
                            : 0;
  const double latency = n > k ? cluster.inter_node_latency_s : cluster.intra_node_latency_s;
  return kCollectiveLaunch.value + std::max(inside, across) + latency;
}

double send_s(const ClusterSpec& cluster, const GroupShape& group, double bytes, Carrier carrier) {
  if (group.size == 1) {
    return 0;
  }
  if (const auto seconds = measured_s(cluster, group, Collective::kSend, bytes, carrier)) {
    return *seconds;
  }
  return group.ranks_per_domain == group.size
             ? bytes / inside_bytes_per_s(cluster) + cluster.intra_node_latency_s
             : bytes / across_bytes_per_s(cluster, group) + cluster.inter_node_latency_s;
}

}  // namespace shardplan
