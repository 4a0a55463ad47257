// The allocations of one pipeline rank of torchtitan in the order of time: the model, the first
// step, two more.
#pragma once

#include <vector>

#include "estimator/ledger/stage_pieces.h"

namespace shardplan::torchtitan {

std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, const StagePieces& pieces);

}  // namespace shardplan::torchtitan
