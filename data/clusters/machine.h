// GPU and cluster JSON -> GpuSpec and ClusterSpec.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "data/read/library.h"
#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// From the JSON object of a library file or a case line.
ClusterSpec read_cluster(const JsonValue& value, const std::string& file, const Library& library);
// A GPU alone, without the constants of the time model.
GpuSpec read_gpu(const JsonValue& value, const std::string& file);

}  // namespace shardplan
