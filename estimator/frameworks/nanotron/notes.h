// Notes of an estimate beside its numbers: its assumptions, and what is not counted.
#pragma once

#include <string>
#include <vector>

#include "estimator/plan/framework_profile.h"

namespace shardplan::nanotron {

// Moments and tensors outside the model, by name.
std::vector<std::string> not_counted(const FrameworkProfile& profile);

}  // namespace shardplan::nanotron
