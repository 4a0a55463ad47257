// Temporaries of the step of Megatron-LM's optimizer: their rows.
#pragma once

#include "estimator/frameworks/megatron/state_block.h"

namespace shardplan::megatron {

// Temporaries of the optimizer step.
void add_optimizer_step(MegatronState& state);

void add_muon_step(MegatronState& state);

}  // namespace shardplan::megatron
