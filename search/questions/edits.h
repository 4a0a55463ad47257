// The single changes that advise tries.
#pragma once

#include <vector>

#include "search/questions/advise.h"

namespace shardplan {

// Slices the experts of a plan whose tp or ep was changed: as tp where they were so by default
// (with ep 1, or under a tp above 1), else as before. Where only the other of the two makes the
// plan valid, that one. Plans of models without experts stay as they are.
void suit_experts(const Job& job, const Plan& before, Plan& plan);

// Of every degree and of the micro-batch all powers of two times the plan's own and all its
// divisors, all counts of chunks, ZeRO stages, recompute choices, schedules and methods of the
// profile, cheaper state, offload.
std::vector<PlanEdit> single_edits(const Job& job, const Plan& plan);

}  // namespace shardplan
