// shardplan support: what of which framework is counted, measured or refused.
#pragma once

#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/commands/command.h"
#include "tools/options/options.h"

namespace shardplan {

// One thing that a training may use, in one version of a framework.
struct FeatureSupport {
  std::string framework;  // the name of its profile
  std::string version;
  std::string feature;
  std::string words;               // the options that ask for it
  std::string refusal;             // "" where plans that have it are counted
  std::int64_t measured_runs = 0;  // that have it, of those that the profile predicts
};

// Whether plans are counted is asked of the framework's rules, by sample jobs.
std::vector<FeatureSupport> support_of(const std::string& framework, const Library& library);

// The frameworks, older versions apart, that take the job and the plan that options of `estimate`
// ask of another.
std::vector<std::string> frameworks_that_take(const Options& options, const Library& library);

ExitCode run_support(const Arguments& arguments);

}  // namespace shardplan
