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
// whole, and its graph, within the outer backward pass. `other`: a second input, which the function
// reads where it lies, as long as the graph lives; none: null.
Tensor reentrant_checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function,
                            Tensor* other = nullptr);

// The same, whose input lies on the host until it runs again (LLaMA-Factory ff6d4d1
// src/llamafactory/model/model_utils/checkpointing.py UnslothGradientCheckpointing).
Tensor host_checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function,
                       Tensor* other = nullptr);

// Saved tensors go through the hooks while it lives; none: as they would.
class WithHooks {
 public:
  WithHooks(Graph& graph, std::shared_ptr<SavedTensorHooks> hooks);
  ~WithHooks();
  WithHooks(const WithHooks&) = delete;
  WithHooks& operator=(const WithHooks&) = delete;

 private:
  Graph& graph_;
  bool is_on_;
};

}  // namespace shardplan::eager
