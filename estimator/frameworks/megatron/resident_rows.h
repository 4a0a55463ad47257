// What stays on a stage under PyTorch besides parameters, gradients and optimizer state: library
// workspaces inside the allocator, and the ends of its blocks.
#pragma once

#include <vector>

#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::megatron {

// Rows without elements or copies do not exist; bytes are not set.
std::vector<StateRow> resident_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                    const StageTensors& tensors);

}  // namespace shardplan::megatron
