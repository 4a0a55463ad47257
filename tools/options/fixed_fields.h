// A search that is told fields of the plan as an estimate is: --tp 2 is --fix tp=2.
#pragma once

#include <set>
#include <string>

#include "search/space/search_space.h"
#include "tools/options/options.h"

namespace shardplan {

// Leaves the axis of every field that the options give one value, and names it in `named`.
void fix_given_fields(const Options& options, SearchSpace& space, std::set<std::string>& named);

}  // namespace shardplan
