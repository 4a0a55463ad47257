// The answers of a search over several clusters, and what --headroom and --families add to one.
#pragma once

#include <string>

#include "tools/commands/sweep.h"
#include "tools/report/table.h"

namespace shardplan {

std::string extras_text(const SearchExtras& extras);
// Columns of headroom, rows and columns of families.
void add_extras(const SearchExtras& extras, Table& search_table);
// Where rows of other lists follow: a first column `list`, "ranked" in the rows that are there.
void name_ranked_rows(Table& search_table);
std::string with_extras(const SearchExtras& extras, const std::string& search_json);
std::string sweep_text(const SweepReport& report);
Table sweep_table(const SweepReport& report);
std::string sweep_json(const SweepReport& report);
std::string cost_lines(const SweepReport& report);
Table cost_table(const SweepReport& report);  // one row

}  // namespace shardplan
