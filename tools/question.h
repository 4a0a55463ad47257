// What the options ask: the library they read, the Job, the Plan.
#pragma once

#include <string>
#include <vector>

#include "data/library.h"
#include "estimator/job.h"
#include "tools/options.h"
#include "tools/prediction.h"

namespace shardplan {

Library library_of(const Options& options);  // --data, else what the program carries

// All of a Job except its global batch. Warnings of the model's file go to `warnings`.
Job job_of(const Options& options, const Library& library, std::vector<std::string>& warnings);

MemoryRule memory_rule_of(const Options& options);

struct Question {
  Job job;
  Plan plan;
  std::vector<std::string> given;          // fields of the plan that the user set
  std::vector<std::string> given_options;  // switches of the framework that the user set
  std::vector<std::string> warnings;
  bool microbatches_given = false;  // --num-microbatches: the global batch follows the micro batch
};

Question question_of(const Options& options, const Library& library);

// The global batch that num_microbatches per data-parallel rank make.
std::int64_t global_batch_of(const Job& job, const Plan& plan, std::int64_t num_microbatches);

}  // namespace shardplan
