// A cluster of the same nodes with another number of GPUs.
#pragma once

#include <optional>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Whole nodes, or a part of one; nothing for any other number.
std::optional<ClusterSpec> resized(const ClusterSpec& cluster, std::int64_t num_gpus);

}  // namespace shardplan
