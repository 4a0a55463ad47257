// The case line: one format in and out, schema 1. See README, "The case line".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "estimator/plan/job.h"
#include "estimator/plan/measurement.h"

namespace shardplan {

// An option of the framework as the line states it: {"compile", "true"}.
struct CaseOption {
  std::string name;
  std::string value;
};

struct Case {
  std::string id;
  std::string framework;
  std::string framework_version;
  bool supported = false;  // the library has a profile for the framework; else job.profile is unset
  std::string unsupported;  // a run's settings that nothing describes: no estimate is possible
  Job job;
  Plan plan;
  std::vector<CaseOption> options;  // also where there is no profile
  std::optional<Measurement> measured;
  std::vector<std::string> warnings;
};

// Reads one line. `place` is "file:line" for messages. InputError for anything wrong in it.
Case read_case(const std::string& line, const std::string& place, const Library& library);

// The id of a line that cannot be read as a case, as far as it can be told; else "".
std::string case_id_of(const std::string& line);

}  // namespace shardplan
