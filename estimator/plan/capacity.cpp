#include "estimator/plan/capacity.h"

namespace shardplan {

std::int64_t nominal_capacity_bytes(const ClusterSpec& cluster) {
  return cluster.memory_limit_bytes.value_or(cluster.gpu.nominal_memory_bytes);
}

std::int64_t device_capacity_bytes(const ClusterSpec& cluster) {
  return cluster.memory_limit_bytes.value_or(cluster.gpu.memory_bytes);
}

}  // namespace shardplan
