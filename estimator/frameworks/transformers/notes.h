// Notes of an estimate beside its numbers: its assumptions, and what is not counted.
#pragma once

#include <string>
#include <vector>

#include "estimator/ledger/stage_pieces.h"

namespace shardplan::transformers {

void add_assumptions(const Job& job, const Plan& plan, const PlanPieces& pieces,
                     std::vector<Assumption>& assumptions);
// Moments and tensors outside the model, by name.
std::vector<std::string> not_counted(const FrameworkProfile& profile);

}  // namespace shardplan::transformers
