#include "search/space/resize.h"

#include <algorithm>

namespace shardplan {

std::optional<ClusterSpec> resized(const ClusterSpec& cluster, std::int64_t num_gpus) {
  ClusterSpec result = cluster;
  if (num_gpus < cluster.gpus_per_node) {
    result.gpus_per_node = num_gpus;
    result.nodes = 1;
    result.nvlink_domain = std::min(cluster.nvlink_domain, num_gpus);
  } else if (num_gpus % cluster.gpus_per_node == 0) {
    result.nodes = num_gpus / cluster.gpus_per_node;
  } else {
    return std::nullopt;
  }
  return result;
}

}  // namespace shardplan
