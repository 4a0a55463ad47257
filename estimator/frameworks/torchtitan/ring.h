// The rounds of ring attention as the trainer runs them.
#pragma once

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

// Ring attention of torch.distributed.tensor (experimental/_attention.py), first rank of the ring:
// from the second round on half the queries over all keys.
void play_ring_forward(TitanTape& tape, const TitanSizes& sizes, LayerTensors& layer);

// Leaves the gradients of queries (bf16) and of keys and values (bf16, one tensor).
struct RingGradients {
  TapeTensor query;
  TapeTensor key_value;
};
RingGradients play_ring_backward(TitanTape& tape, const TitanSizes& sizes);

}  // namespace shardplan::torchtitan
