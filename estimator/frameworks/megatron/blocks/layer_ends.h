// Ends of a layer of Transformer Engine under Megatron, whatever stands between them.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// The residual stream and, of a layer that mixes tokens, the norm in front.
void add_layer_input(MegatronBlock& block);
// Ends of whatever mixes tokens: the gathered input of the product in front, and that product's
// gradients, which is so wide on one rank.
void add_input_gathers(MegatronBlock& block);
void add_input_gradients(MegatronBlock& block, std::int64_t width);

}  // namespace shardplan::megatron
