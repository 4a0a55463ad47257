// Experts that are dealt to ranks, behind DeepEP's exchange of tokens. Sources: axolotl 067b021
// integrations/expert_parallel/experts_fn.py _deep_ep_forward, _DeepEPDispatch, _DeepEPCombine,
// _grouped_mm_local; DeepEP v1.2.1 csrc/deep_ep.cpp intranode_dispatch, intranode_combine.
#pragma once

#include "estimator/frameworks/pieces/huggingface/experts.h"

namespace shardplan::huggingface {

// Tokens that reach a rank from all of them, each of which has as many: those with a choice among
// the rank's experts, where every expert is as likely; rounded up.
std::int64_t received_tokens(const ExpertSizes& sizes, std::int64_t ranks);

// What the chosen experts of all ranks make of this rank's tokens; `sizes` are those of the layer.
// Every choice of a received token is a row of the grouped products: choices of other ranks'
// experts are rows of the first expert's, with weight 0.
eager::Tensor dispatched_experts(eager::Graph& graph, const Experts& experts,
                                 const eager::Tensor& hidden, const eager::Tensor& weights,
                                 const ExpertSizes& sizes, std::int64_t ranks);

}  // namespace shardplan::huggingface
