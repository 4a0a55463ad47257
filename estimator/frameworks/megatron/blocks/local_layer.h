// What passes through a Megatron-core layer under the local spec, and its dense feed-forward part:
// their rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_local_layer_ends(MegatronBlock& block);
void add_local_ffn_norm(MegatronBlock& block);
void add_local_ffn_norm_gradient(MegatronBlock& block);
void add_local_dense_ffn(MegatronBlock& block);

}  // namespace shardplan::megatron
