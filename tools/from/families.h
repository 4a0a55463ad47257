// Models by their published names whose layers, or what stands beside them, are not described.
#pragma once

#include <string>

namespace shardplan {

// What the library has of a model.
struct Described {
  bool layers = false;
  bool tower = false;  // that stands beside the text, with its sizes
};
// "" or what such a model has that is not described: "layers of linear attention".
std::string undescribed_family(const std::string& name, Described described);

}  // namespace shardplan
