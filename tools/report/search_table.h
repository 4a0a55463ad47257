// A search for people: the fastest plans, the front, what was pruned and why.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/report/terminal.h"

namespace shardplan {

std::string search_text(const SearchReport& report, const Paint& paint);

}  // namespace shardplan
