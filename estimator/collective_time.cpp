// n members, k of them inside one NVLink domain, n / k domains. A ring inside the domain and one
// across it run at the same time (NCCL pipelines its chunks), so the slower one counts.
#include "estimator/collective_time.h"

#include <algorithm>

#include "estimator/efficiency.h"

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

// The launch, and the steps of a ring: k - 1 inside the domain, one per further domain across.
double latency_s(const ClusterSpec& cluster, const GroupShape& group) {
  const double inside = static_cast<double>(group.ranks_per_domain - 1);
  const double across = static_cast<double>(div_exact(group.size, group.ranks_per_domain) - 1);
  return kCollectiveLaunch.value + inside * cluster.intra_node_latency_s +
         across * cluster.inter_node_latency_s;
}

}  // namespace

// nccl-tests: the bus factor of all-gather and reduce-scatter is (n - 1) / n. Hierarchical: every
// rank receives (k - 1) / k of the tensor inside its domain, and 1 / k of what other domains hold
// over its own link.
double all_gather_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  if (group.size == 1) {
    return 0;
  }
  const double n = static_cast<double>(group.size);
  const double k = static_cast<double>(group.ranks_per_domain);
  const double inside =
      group.ranks_per_domain > 1 ? bytes * (k - 1) / k / inside_bytes_per_s(cluster) : 0;
  const double across = group.ranks_per_domain < group.size
                            ? bytes * (n - k) / (n * k) / across_bytes_per_s(cluster, group)
                            : 0;
  return std::max(inside, across) + latency_s(cluster, group);
}

double reduce_scatter_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  return all_gather_s(cluster, group, bytes);
}

double all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  return reduce_scatter_s(cluster, group, bytes) + all_gather_s(cluster, group, bytes);
}

// A rank sends 1 / n of its bytes to each member: k - 1 of them inside its domain.
double all_to_all_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  if (group.size == 1) {
    return 0;
  }
  const double n = static_cast<double>(group.size);
  const double k = static_cast<double>(group.ranks_per_domain);
  const double inside =
      group.ranks_per_domain > 1 ? bytes * (k - 1) / n / inside_bytes_per_s(cluster) : 0;
  const double across = group.ranks_per_domain < group.size
                            ? bytes * (n - k) / n / across_bytes_per_s(cluster, group)
                            : 0;
  return std::max(inside, across) + latency_s(cluster, group);
}

double send_s(const ClusterSpec& cluster, const GroupShape& group, double bytes) {
  if (group.size == 1) {
    return 0;
  }
  return group.ranks_per_domain == group.size
             ? bytes / inside_bytes_per_s(cluster) + cluster.intra_node_latency_s
             : bytes / across_bytes_per_s(cluster, group) + cluster.inter_node_latency_s;
}

}  // namespace shardplan
