// What an answer rests on: defaults of the profile and the plan with their alternatives, and what
// the model leaves out.
#pragma once

#include <string>
#include <vector>

#include "estimator/job.h"
#include "estimator/memory_estimate.h"

namespace shardplan {

// Each says what its alternative would change; it decides where the alternative turns `fit`.
std::vector<Assumption> assumptions_behind(const Job& job, const Plan& plan,
                                           const MemoryEstimate& estimate);

// Moments and tensors outside the model, by name.
std::vector<std::string> not_counted(const FrameworkProfile& profile);

}  // namespace shardplan
