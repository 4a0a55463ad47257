// shardplan compare as JSON.
#pragma once

#include <string>

#include "tools/commands/compare.h"
#include "tools/report/table.h"

namespace shardplan {

std::string comparison_json(const Side& left, const Side& right, const Table& table);

}  // namespace shardplan
