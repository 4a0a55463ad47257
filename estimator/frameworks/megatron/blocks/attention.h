// Attention of a Megatron layer around its core: rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// The projection behind whatever mixes tokens.
void add_projection(MegatronBlock& block);
void add_attention(MegatronBlock& block);
void add_context_parallel(MegatronBlock& block);

}  // namespace shardplan::megatron
