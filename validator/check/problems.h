// What the checks of programs find: a sentence each.
#pragma once

#include <string>
#include <vector>

namespace shardplan {

using Problems = std::vector<std::string>;

}  // namespace shardplan
