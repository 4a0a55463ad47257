// What Megatron-LM's experts take besides their products: the choice of experts, and rows on their
// way to other ranks and back.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan {

// The columns of BlockKernels of these names.
BlockTime megatron_expert_choice(const BlockContext& context);
BlockTime megatron_expert_exchange(const BlockContext& context, double rows);
BesideCost megatron_exchange_cost(const BlockContext& context, double rows);

}  // namespace shardplan
