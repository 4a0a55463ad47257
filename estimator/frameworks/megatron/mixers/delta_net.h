// Gated delta nets in the place of a Megatron layer's attention (qwen3_next, qwen3_5).
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_delta_net(MegatronBlock& block);

}  // namespace shardplan::megatron
