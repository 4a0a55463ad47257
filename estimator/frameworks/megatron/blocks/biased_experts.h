// Rows of experts with a bounded gate and with biases (gpt_oss), beyond those of other experts.
#pragma once

#include <cstdint>

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// The bounded gate of so many rows times width; `recomputed` where backward makes it again, from
// `replayed` on.
void add_clamped_gate(MegatronBlock& block, std::int64_t activations, bool recomputed,
                      Step replayed);

// Biases behind the second product of so many rows; backward then has the gradient of so many
// activations at once.
void add_expert_biases(MegatronBlock& block, std::int64_t rows, std::int64_t activations);

}  // namespace shardplan::megatron
