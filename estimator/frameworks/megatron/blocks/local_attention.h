// Attention of a Megatron-core layer under the local spec: its rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_local_attention(MegatronBlock& block);

}  // namespace shardplan::megatron
