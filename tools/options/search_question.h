// What the options of a search ask: the job, the plans to try, how to estimate one of them alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "search/walk/search.h"
#include "tools/options/options.h"
#include "tools/options/question.h"

namespace shardplan {

struct SearchQuestion {
  Job job;            // with its global batch
  SearchSpace space;  // the default, with the run's own choices, --axes, --fix and --range
  std::optional<GivenRun> run = std::nullopt;  // --from
  std::string estimate_command;  // `shardplan estimate` with the job's options; a plan's may follow
  std::vector<std::string> warnings = {};

  // The command that estimates a valid plan of the space.
  std::string command_of(const Plan& plan) const;
};

// InputError also for a run's file that has no estimate.
SearchQuestion search_question_of(const Options& options, const Library& library);

}  // namespace shardplan
