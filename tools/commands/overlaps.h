// Switches that only make a run faster and that a search has on unless somebody says otherwise.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"
#include "tools/options/search_question.h"

namespace shardplan {

// Words of --framework-option for the framework's overlaps that nobody has set: reductions, gathers
// and exchanges of tensor parallelism beside other work. None where a run's file decides.
std::vector<std::string> open_overlaps(const Options& options, const SearchQuestion& question,
                                       const Library& library);

// Those of the words that do anything for the plan.
std::vector<std::string> useful_overlaps(const std::vector<std::string>& words, const Plan& plan);

// The job without these switches: as the framework has them.
Job without_overlaps(Job job, const std::vector<std::string>& words, const Library& library);

// The options with these words of --framework-option.
Options with_switches(Options options, const std::vector<std::string>& words);

}  // namespace shardplan
