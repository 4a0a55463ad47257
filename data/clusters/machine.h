// GPU and cluster JSON -> GpuSpec and ClusterSpec.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "data/read/library.h"
#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Cluster and GPU from their JSON objects (library files, case lines).
ClusterSpec read_cluster(const JsonValue& value, const std::string& file, const Library& library);
GpuSpec read_gpu(const JsonValue& value, const std::string& file);

}  // namespace shardplan
