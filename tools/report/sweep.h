// The answers of a search over several clusters, and what a plan costs.
#pragma once

#include <string>
#include <vector>

#include "tools/commands/sweep.h"
#include "tools/report/table.h"

namespace shardplan {

// One row for each cluster, for people.
Table sweep_people_table(const SweepReport& report);
// What the table rests on, and which cluster is chosen: each a line of any length.
std::vector<std::string> sweep_notes(const SweepReport& report);
std::string sweep_text(const SweepReport& report);
Table sweep_table(const SweepReport& report);
std::string sweep_json(const SweepReport& report);
std::string cost_lines(const SweepReport& report);
Table cost_table(const SweepReport& report);  // one row

}  // namespace shardplan
