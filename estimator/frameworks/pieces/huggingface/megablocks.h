// Experts by megablocks' kernels of the Hub, which transformers' use_kernels has in place of
// gpt-oss's: every expert takes as many tokens as its share would be and drops others, so that
// products are of equal matrices. Source: huggingface/kernels-community (2026-07-08) megablocks/
// torch-ext/megablocks/layers.py MegaBlocksMoeMLP, moe_forward, forward_once, mlp_forward,
// ops/binned_gather.py, ops/binned_scatter.py, backend/kernels.py.
#pragma once

#include "estimator/frameworks/pieces/huggingface/experts.h"

namespace shardplan::huggingface {

// What the chosen experts make of the tokens, as experts_forward.
eager::Tensor megablocks_forward(eager::Graph& graph, const Experts& experts,
                                 const eager::Tensor& hidden, const eager::Tensor& weights,
                                 const ExpertSizes& sizes);

}  // namespace shardplan::huggingface
