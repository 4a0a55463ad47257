// The calls that attention of one layer consists of. Without context parallelism and under
// all-to-all it is one; else blocks of queries on keys: a triangle on the diagonal, and rectangles,
// whose tiles are all of one length.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// (query, key) pairs that `queries` from the start of a sequence on see: each those before it and
// its own, as far as the layer's window goes. s^2 / 2 for the triangle; w s - w^2 / 2 for a band of
// w; c^2 / 2 for every chunk of c.
double seen_pairs(const LayerSpec& layer, double queries);

// Seconds of all calls of one layer and microbatch whose pairs `work` counts, at the rates of the
// GPU's file.
ForwardBackward attention_calls_s(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work);

}  // namespace shardplan
