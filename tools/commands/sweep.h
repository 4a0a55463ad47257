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

struct SweepReport {
  SweepTarget target;
  StepTimeSpread spread;
  std::vector<SweepPoint> points;
  bool has_given_prices = false;           // by the user, not by clusters' files
  std::vector<std::string> commands = {};  // `shardplan estimate` of each point's plan
};

// The same of one plan: what --tokens and a price add to its estimate.
bool asks_cost(const Options& options);
SweepReport cost_of(const Question& question, const Prediction& prediction, const Options& options,
                    const Library& library);

}  // namespace shardplan
