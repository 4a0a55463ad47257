// Projections of tokens in front of routed experts and of their outputs behind them
// (moe_latent_size).
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Before the dispatch, and behind the combination; nothing where experts see tokens whole.
// recomputed: whether selective recomputation replays the whole mixture.
void add_latent_input(MegatronBlock& block, bool recomputed);
void add_latent_output(MegatronBlock& block, bool recomputed);

}  // namespace shardplan::megatron
