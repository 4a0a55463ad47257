// Ends of the pipeline under Megatron-core's local spec: their rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// core/models/common/embeddings/language_model_embedding.py, core/tensor_parallel/layers.py
// (VocabParallelEmbedding). Output is [b, s, h]; beyond one sequence its transposition copies.
void add_local_embedding_forward(MegatronBlock& block);

void add_local_embedding_backward(MegatronBlock& block);
void add_local_head(MegatronBlock& block);

}  // namespace shardplan::megatron
