// torch.utils.checkpoint: a function whose saved tensors are made anew in the backward pass.
// Source: torch/utils/checkpoint.py of PyTorch 2.11.
#pragma once

#include <functional>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

using CheckpointedFunction = std::function<Tensor(const Tensor& input)>;

// Without reentrance: the first tensor that backward unpacks has the function run again, up to the
// last tensor that it saves (_enable_checkpoint_early_stop). `autocast` is that of the forward
// pass.
Tensor checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function);

// With reentrance (CheckpointFunction): the function runs without a graph; backward runs it again
// whole, and its graph, within the outer backward pass.
Tensor reentrant_checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function);

}  // namespace shardplan::eager
