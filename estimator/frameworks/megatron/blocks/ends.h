// Ends of the pipeline under Megatron: their rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_embedding(MegatronBlock& block);

// Norms of embedding and hidden state, their concatenation, projection 2h -> h
// (core/transformer/multi_token_prediction.py); the layer follows.
void add_mtp_projection(MegatronBlock& block);

void add_head(MegatronBlock& block);

}  // namespace shardplan::megatron
