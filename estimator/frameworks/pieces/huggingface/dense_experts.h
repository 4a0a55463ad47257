// Experts that all see every token, scaled by its score, as batched products of whole weights.
// Source: transformers 5.17 models/llama4/modeling_llama4.py Llama4TextMoe, Llama4Router,
// Llama4TextExperts.
#pragma once

#include "estimator/frameworks/pieces/huggingface/experts.h"

namespace shardplan::huggingface {

// A score of each expert for each token; nothing but the highest is more than 0.
eager::Tensor scores_of_all(eager::Graph& graph, const Experts& experts,
                            const eager::Tensor& hidden, const ExpertSizes& sizes);
// What every expert makes of every token: num_experts as many rows.
eager::Tensor dense_experts_forward(eager::Graph& graph, const Experts& experts,
                                    const eager::Tensor& hidden, const eager::Tensor& scores,
                                    const ExpertSizes& sizes);
// `sum` with the outputs of a token's experts added in place.
eager::Tensor with_sum_of_experts(eager::Graph& graph, const eager::Tensor& sum,
                                  const eager::Tensor& outputs);

}  // namespace shardplan::huggingface
