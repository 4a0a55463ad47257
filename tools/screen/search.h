// A search on one screen: the plan to take, its rivals, how to run it.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::string search_screen(const Screen& screen, const SearchReport& report);

}  // namespace shardplan
