// Models by their published names whose layers, or what stands beside them, are not described.
#pragma once

#include <string>

namespace shardplan {

// "" or what such a model has: "layers of linear attention".
std::string undescribed_family(const std::string& name);

}  // namespace shardplan
