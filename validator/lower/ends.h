// Vocabulary-parallel ends of the model: embedding, head and loss.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

void embedding_forward(Lowering& l, const ChunkWeights& w, const View& x);
void embedding_backward(Lowering& l, const ChunkWeights& w, const View& dx);
// Final norm, head and loss of x, forward and at once backward into its gradient dx.
void head(Lowering& l, const ChunkWeights& w, const View& x, const View& dx);

}  // namespace shardplan
