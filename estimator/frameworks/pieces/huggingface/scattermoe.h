// Experts by ScatterMoE's kernels, which take rows of tokens where they lie and adapters beside the
// weights, as axolotl has them. Source: axolotl 067b021 integrations/kernels/libs/scattermoe_lora/
// experts.py scattermoe_experts_forward, parallel_experts.py ParallelLinear,
// parallel_linear_lora.py ScatterMoELoRA, selective_dequant.py, experts_lora_fastpath.py.
#pragma once

#include "estimator/frameworks/pieces/huggingface/experts.h"

namespace shardplan::huggingface {

// What the chosen experts make of the tokens, as experts_forward. All experts are taken to be
// chosen by some token: those of 4 bits are unpacked that are.
eager::Tensor scattermoe_forward(eager::Graph& graph, const Experts& experts,
                                 const eager::Tensor& hidden, const eager::Tensor& weights,
                                 const ExpertSizes& sizes);

}  // namespace shardplan::huggingface
