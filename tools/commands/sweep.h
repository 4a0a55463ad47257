// shardplan search over several clusters, and what it can add to the answer for one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "search/questions/families.h"
#include "search/questions/sweep.h"
#include "tools/commands/command.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/report/table.h"

namespace shardplan {

// Several cluster sizes, several kinds of GPU, or a target.
bool is_sweep(const Options& options);
ExitCode run_sweep(const Options& options, const Library& library);

// --headroom and --families of one search.
struct SearchExtras {
  std::vector<Headroom> headroom;  // of the plans shown
  std::vector<PlanFamily> families;
};
SearchExtras search_extras(const Options& options, const Job& job, const SearchSpace& space,
                           const SearchOptions& search, const SearchResult& result);
std::string extras_text(const SearchExtras& extras);
// Columns of headroom, rows and columns of families.
void add_extras(const SearchExtras& extras, Table& search_table);
// Where rows of other lists follow: a first column `list`, "ranked" in the rows that are there.
void name_ranked_rows(Table& search_table);
std::string with_extras(const SearchExtras& extras, const std::string& search_json);

struct SweepReport {
  SweepTarget target;
  StepTimeSpread spread;
  std::vector<SweepPoint> points;
  std::vector<std::string> commands = {};  // `shardplan estimate` of each point's plan
};
std::string sweep_text(const SweepReport& report);
Table sweep_table(const SweepReport& report);
std::string sweep_json(const SweepReport& report);

// The same of one plan: what --tokens and a price add to its estimate.
bool asks_cost(const Options& options);
SweepReport cost_of(const Question& question, const Prediction& prediction, const Options& options,
                    const Library& library);
std::string cost_lines(const SweepReport& report);
Table cost_table(const SweepReport& report);  // one row

}  // namespace shardplan
