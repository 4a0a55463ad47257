// Sizes of the tensors that a stage's parameters are, one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"

namespace shardplan {

// Elements of the large parameter tensors of a stage, in model order; of one kind of block.
std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage);
std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage, BlockKind kind);

}  // namespace shardplan
