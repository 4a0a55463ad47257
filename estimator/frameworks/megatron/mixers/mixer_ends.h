// What stands behind Mamba-2 and gated delta nets alike: the product of the output, and gradients
// of the product in front.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// The mixer's output [T, width], which the product of the output saves: under fp8 that saves a copy
// of its own (add_projection), and this one goes.
void keep_mixer_output(MegatronBlock& block, std::string_view name, std::int64_t elements,
                       std::string_view formula);

// Gradients of the product in front, which makes `made` numbers a token on this rank; the product
// of the output; adapters on both.
void add_mixer_ends(MegatronBlock& block, std::int64_t made);

}  // namespace shardplan::megatron
