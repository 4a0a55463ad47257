// Answers as JSON, one line each: keys in a fixed order, bytes as integers, doubles as the shortest
// text that reads back equal.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/report/table.h"

namespace shardplan {

// One line each; keys in a fixed order.
std::string estimate_json(const EstimateReport& report);
std::string search_json(const SearchReport& report);
std::string batch_json(const BatchAnswer& answer);
std::string table_json(const Table& table);

}  // namespace shardplan
