// What the options ask: the library they read, the Job, the Plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"
#include "estimator/plan/job.h"
#include "tools/commands/prediction.h"
#include "tools/options/options.h"

namespace shardplan {

Library library_of(const Options& options);  // --data, else what the program carries

// --from: what the run's file says, or nothing.
struct GivenRun {
  std::string file;
  RunReading reading;
  std::vector<std::string> set_words;  // of --set, that set something of the file
};

// All of a Job except its global batch, which only a run's file states. Warnings of the model's
// file go to `warnings`.
struct GivenJob {
  Job job;
  std::optional<GivenRun> run = std::nullopt;
  std::vector<std::string> warnings = {};
};
GivenJob job_of(const Options& options, const Library& library);

// --set tp=8 is --tp 8.
Options with_plan_fields(Options options);

MemoryRule memory_rule_of(const Options& options);

struct Question {
  Job job;
  Plan plan;
  std::vector<std::string> given;          // fields of the plan that the user set
  std::vector<std::string> given_options;  // switches of the framework that the user set
  std::vector<std::string> warnings;
  bool microbatches_given = false;  // --num-microbatches: the global batch follows the micro batch
  std::optional<GivenRun> run = std::nullopt;  // --from
};

Question question_of(const Options& options, const Library& library);

// The options of `estimate` that give this valid plan where it starts from the run's file, if any.
std::string options_of_plan(const Job& job, const Plan& plan, const std::optional<GivenRun>& run);

// predict(), or `unsupported` with the setting of the run's file that no row describes.
Prediction predict_question(const Question& question, const MemoryRule& rule);

// Of a switch or choice of the framework the values that the profile does not have.
std::vector<std::string> other_values(const FrameworkProfile& profile, const ProfileOption& option);

// Whether a switch of the framework takes memory that nobody counts: advice and search do not offer
// it, since they could not say that it fits.
bool takes_uncounted_memory(const ProfileOption& option);

}  // namespace shardplan
