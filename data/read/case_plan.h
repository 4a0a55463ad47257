// The plan of a case line, and what a profile chooses where the line is silent.
#pragma once

#include <string>
#include <vector>

#include "data/read/json_reader.h"
#include "estimator/plan/job.h"
#include "estimator/plan/plan.h"

namespace shardplan {

// The fields of a plan; `given` receives the names of those that the line states.
void read_plan(const JsonValue& value, const std::string& file, Plan& plan,
               std::vector<std::string>& given);

// The plan of a job's profile with all its defaults for given degrees: zero, sequence_parallel,
// schedule, grad_dtype, cp_method, recompute, and of Megatron-core's experts that no expert
// parallelism divides etp. `plan` holds what the user gave; `given` names those fields.
Plan with_profile_defaults(const Job& job, Plan plan, const std::vector<std::string>& given);

}  // namespace shardplan
