// What Megatron-LM's experts take besides their products: the choice of experts, and rows on their
// way to other ranks and back.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::megatron {

// The columns of BlockKernels of these names.
BlockTime expert_choice(const BlockContext& context);
BlockTime expert_exchange(const BlockContext& context, double rows);
BesideCost exchange_cost(const BlockContext& context, double rows);

}  // namespace shardplan::megatron
