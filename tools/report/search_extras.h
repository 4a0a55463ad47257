// What --headroom and --families add to the answer of a search.
#pragma once

#include <string>

#include "tools/commands/sweep.h"
#include "tools/report/table.h"

namespace shardplan {

std::string whole_cell(double value);
std::string extras_text(const SearchExtras& extras);
// Columns of headroom, rows and columns of families.
void add_extras(const SearchExtras& extras, Table& search_table);
// Where rows of other lists follow: a first column `list`, "ranked" in the rows that are there.
void name_ranked_rows(Table& search_table);
std::string with_extras(const SearchExtras& extras, const std::string& search_json);

}  // namespace shardplan
