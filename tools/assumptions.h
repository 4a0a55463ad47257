// What an answer takes for granted, and whether another choice would turn the verdict.
#pragma once

#include <vector>

#include "tools/prediction.h"
#include "tools/question.h"

namespace shardplan {

// The estimator's assumptions, then the plan's fields and the framework's switches that the user
// left to defaults. A default decides if one of its other values is valid and turns "fits" into
// "does not fit" or back.
std::vector<Assumption> assumptions_of(const Question& question, const Library& library,
                                       const Prediction& prediction, const MemoryRule& rule);

}  // namespace shardplan
