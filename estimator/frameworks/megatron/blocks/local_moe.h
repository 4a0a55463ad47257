// Mixture of experts of a Megatron-core layer under the local spec: its rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_local_moe(MegatronBlock& block);

}  // namespace shardplan::megatron
