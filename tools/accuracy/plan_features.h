// What distinguishes runs from one another, as words: by them errors are grouped, and a plan is
// told from what was measured.
#pragma once

#include <string>
#include <vector>

#include "data/read/case_line.h"

namespace shardplan {

// "tp > 1", "moe", "zero 3", "recompute selective/mlp", "compile=true", ... of a valid plan.
// `options` are the framework's switches that are stated.
std::vector<std::string> plan_features(const Job& job, const Plan& plan,
                                       const std::vector<CaseOption>& options);

}  // namespace shardplan
