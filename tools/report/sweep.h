// The answers of a search over several clusters, and what a plan costs.
#pragma once

#include <string>

#include "tools/commands/sweep.h"
#include "tools/report/table.h"

namespace shardplan {

std::string sweep_text(const SweepReport& report);
Table sweep_table(const SweepReport& report);
std::string sweep_json(const SweepReport& report);
std::string cost_lines(const SweepReport& report);
Table cost_table(const SweepReport& report);  // one row

}  // namespace shardplan
