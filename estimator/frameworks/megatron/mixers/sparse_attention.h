// Latent attention whose keys an indexer chooses (deepseek_v32, glm_moe_dsa):
// --experimental-attention-variant dsa.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/time/block_layer.h"

namespace shardplan::megatron {

// Queries, keys and values, the indexer, attention over all keys, and the indexer's loss.
void add_sparse_attention(MegatronBlock& block);

// What its kernels take beside those of unfused attention.
void add_sparse_kernels(const BlockContext& context, const LayerSpec& layer, LayerParts& parts);

}  // namespace shardplan::megatron
