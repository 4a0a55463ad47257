// A run of torchtitan: its configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// Models that torchtitan has by name: "llama3/8B", and its tests' own "llama3/debugmodel".
std::vector<std::string> torchtitan_flavors();
std::optional<ModelSpec> torchtitan_model(const std::string& flavor, const Library& library);

RunReading read_torchtitan_run(const RunSettings& settings, const ClusterSpec& cluster,
                               const Library& library);

}  // namespace shardplan
