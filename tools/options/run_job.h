// The job of a run's file (--from), with the options over it.
#pragma once

#include <string>

#include "tools/options/question.h"

namespace shardplan {

// The word names an argument of a run's file, not a switch of the framework.
bool names_argument(const std::string& word);

GivenJob job_of_run(const Options& options, const Library& library);

}  // namespace shardplan
