// Attention of a Megatron layer around its core: rows, and those of the layer's input.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_layer_input(MegatronBlock& block);
// Ends of whatever mixes tokens: the gathered input of the product in front, that product's
// gradients, which is so wide on one rank, and the projection behind.
void add_input_gathers(MegatronBlock& block);
void add_input_gradients(MegatronBlock& block, std::int64_t width);
void add_projection(MegatronBlock& block);
void add_attention(MegatronBlock& block);
void add_context_parallel(MegatronBlock& block);

}  // namespace shardplan::megatron
