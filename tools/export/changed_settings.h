// What a change of a plan changes in the framework's own files.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"
#include "tools/options/question.h"

namespace shardplan {

// New lines of the user's own file, where the run stands in one that is edited, else of the files
// that --export writes: "local_batch_size = 1", "accelerate.yaml: num_processes: 8". Empty where
// the framework has no files or no words for the plan.
std::vector<std::string> changed_settings(const Options& options, const Question& before,
                                          const Question& after, const Library& library);

}  // namespace shardplan
