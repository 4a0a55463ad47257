// The answers of `accuracy --known-runs`.
#pragma once

#include <string>

#include "tools/accuracy/known_runs.h"

namespace shardplan {

std::string known_runs_text(const KnownRunsReport& report);
std::string known_runs_csv(const KnownRunsReport& report);  // one row per run, refused ones too
std::string known_runs_json(const KnownRunsReport& report);

}  // namespace shardplan
