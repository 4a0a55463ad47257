// Two answers held against each other on one screen.
#pragma once

#include <string>

#include "tools/commands/compare.h"
#include "tools/screen/screen.h"

namespace shardplan {

// `differences` as comparison() makes it.
std::string compare_screen(const Screen& screen, const Side& left, const Side& right,
                           const Table& differences);

}  // namespace shardplan
