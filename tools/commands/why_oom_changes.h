// Changes of a plan that make it fit, each judged by a whole estimate.
#pragma once

#include "tools/commands/why_oom.h"

namespace shardplan {

// All options that differ, those that follow from a change too: who sets them has this plan.
std::string changed_options(const Question& before, const JudgedPlan& after);

// The fastest of the single changes and pairs that advise knows: those that let the plan fit or, if
// the estimate lets it fit as it is, use less. Behind them the fewest more GPUs that do, if any, as
// more data parallelism.
void find_changes(WhyOomReport& report, const Library& library);

}  // namespace shardplan
