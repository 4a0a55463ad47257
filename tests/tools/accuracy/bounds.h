// Figures that may only get better, against those recorded in a file.
#pragma once

#include <map>
#include <string>

namespace shardplan {

// By name; less is better.
using Figures = std::map<std::string, double>;

// Checks that every figure has a bound in the file and is at most that, and that every bound has
// its figure. A line is a name, the mark and three decimals. With SHARDPLAN_UPDATE_BOUNDS set the
// file is written first.
void check_against_bounds(const Figures& figures, const std::string& file, char mark);

}  // namespace shardplan
