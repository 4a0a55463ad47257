// Models by their published names whose layers, or what stands beside them, are not described.
#pragma once

#include <string>

namespace shardplan {

// "" or what such a model has: "layers of linear attention". Of a model whose layers the library
// describes only how its weights are kept and what stands beside the text can be in the way.
std::string undescribed_family(const std::string& name, bool has_described_layers);

}  // namespace shardplan
