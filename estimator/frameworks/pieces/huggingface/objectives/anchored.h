// The loss of ASFT: tokens times their probability, and how far the model is from a frozen copy of
// itself. Source: LLaMA-Factory ff6d4d1 src/llamafactory/train/trainer_utils.py asft_loss_func,
// _asft_cross_entropy, _kl_divergence.
#pragma once

#include "estimator/frameworks/pieces/huggingface/loss.h"

namespace shardplan::huggingface {

// Of the logits that both models return, the reference's without a graph.
eager::Tensor anchored_loss(eager::Graph& graph, const eager::Tensor& logits,
                            const eager::Tensor& of_reference, const HeadShape& shape);

}  // namespace shardplan::huggingface
