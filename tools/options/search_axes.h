// --fix and --range: which values an axis of the search takes.
#pragma once

#include <string>

#include "search/space/search_space.h"

namespace shardplan {

// "tp=8": only this value. "tp=1..8": of the axis's values those within the range. "tp=1,2,4":
// exactly these. InputError for unknown axes and values.
void fix_axis(SearchSpace& space, const std::string& text);
std::string axis_of(const std::string& flag, const std::string& text);  // "tp" of "tp=8"
void restrict_axis(SearchSpace& space, const std::string& text);

}  // namespace shardplan
