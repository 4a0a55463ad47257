// How much memory a GPU of a cluster has.
#pragma once

#include <cstdint>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// GPU memory that a threshold is a share of: the user's limit; else the nominal (decimal) capacity
// for the paper's rule, else what the driver reports.
std::int64_t nominal_capacity_bytes(const ClusterSpec& cluster);
std::int64_t device_capacity_bytes(const ClusterSpec& cluster);

}  // namespace shardplan
