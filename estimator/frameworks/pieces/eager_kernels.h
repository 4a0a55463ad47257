// Memory-bound kernels that several frameworks run: PyTorch's, one an operator, and what is counted
// alike. e is the size of an element in bytes.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan {

// Silu 2, product 3; backward product 6, silu 3.
Passes eager_swiglu(double e);
// An activation without a gate: forward 2, backward 3.
Passes eager_activation(double e);

// With the norms of q and of k, which pass over the same elements as the rotary embedding once
// more, where the model has them.
Passes with_head_norms(const Passes& rotary, const ModelSpec& model);

// Attention runs in the kernels that an option names.
inline AttentionBackend asked_attention_backend(const Job& job, const Plan& /*plan*/) {
  return job.profile.attention_backend;
}

// PyTorch's cross_entropy of logits cast to fp32.
inline constexpr Passes kEagerLoss{.forward = {.streamed = 12, .converted = 6},
                                   .backward = {.fused = 10, .streamed = 12}};

// A loss kernel by kernel over parts of the vocabulary, the gradient in place: cast 6, subtraction
// 8, division 8; maximum 4, exponential 8 and sum 4 of fp32, which run at another rate in nanotron
// than in Megatron-core; backward gradient 8, cast 6 (core/tensor_parallel/cross_entropy.py;
// nanotron's functional.py, _ShardedCrossEntropy).
inline constexpr double kLossReductions = 4 + 8 + 4;
inline constexpr Passes kLossCast{.forward = {.converted = 6}, .backward = {.fused = 6}};
Passes loss_of_cast_logits(const KernelBytes& reductions);

// A weight gradient in the element type, added to the main gradient by a kernel of its own.
KernelBytes added_gradient(const Plan& plan);

// Of the embedding's gradient only what tokens touch is counted.
TableGradientKernels touched_table_gradient(const Plan& plan);

}  // namespace shardplan
