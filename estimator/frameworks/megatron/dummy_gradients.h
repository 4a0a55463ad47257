// Dummies of weight gradients that products have added to the main ones.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"

namespace shardplan::megatron {

// Elements of the dummies that Transformer Engine hands autograd where a product has already added
// its weight's gradient into the main one: one for each shape of weights, cached for ever
// (get_dummy_wgrad, module/base.py). None without fused accumulation.
std::vector<std::int64_t> dummy_gradients(const Job& job, const Plan& plan,
                                          const StageLayout& stage);
// The same in bytes.
std::vector<std::int64_t> dummy_gradient_bytes(const Job& job, const Plan& plan,
                                               const StageLayout& stage);

}  // namespace shardplan::megatron
