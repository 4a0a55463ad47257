// What an answer rests on: defaults of the profile and the plan with their alternatives, and what
// the model leaves out.
#pragma once

#include <string>
#include <vector>

#include "estimator/job.h"
#include "estimator/memory_estimate.h"

namespace shardplan {

// Each names its alternative; it decides where the alternative turns the verdict of fit_of_plan.
std::vector<Assumption> assumptions_behind(const Job& job, const Plan& plan);

// Moments and tensors outside the model, by name.
std::vector<std::string> not_counted(const FrameworkProfile& profile);

}  // namespace shardplan
