// AdaLoRA: LoRA whose inner numbers have a trained scale each, E, and whose factors are held
// orthogonal by a term of the loss. Sources: peft 0.20 tuners/adalora/layer.py SVDLinear, model.py
// AdaLoraModel.forward; ms-swift 3602360 swift/tuners/peft.py adalora_forward (arXiv 2303.10512).
#pragma once

#include <span>

#include "estimator/frameworks/pieces/huggingface/linear.h"

namespace shardplan::huggingface {

// input * (A * E)^T * B^T, scaled, and divided by a tensor in fp32, in which the output is.
eager::Tensor adaptive_product(eager::Graph& graph, const Linear& linear,
                               const eager::Tensor& input);

// The loss and the distances of A A^T and B^T B from the identity, of factors of one rank.
eager::Tensor with_orthogonal_factors(eager::Graph& graph, eager::Tensor loss,
                                      std::span<eager::Parameter* const> factors,
                                      std::int64_t rank);

}  // namespace shardplan::huggingface
