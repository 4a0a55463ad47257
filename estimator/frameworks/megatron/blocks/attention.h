// Attention of a Megatron layer around its core: rows, and those of the layer's input.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_layer_input(MegatronBlock& block);
void add_attention(MegatronBlock& block);
void add_context_parallel(MegatronBlock& block);

}  // namespace shardplan::megatron
