// axolotl's autograd functions around linear layers with adapters: one of queries, keys and values,
// one of the FFN, one of attention's output. They keep their input, matrices of adapters in its
// type, and of the FFN gate and up, over which its backward pass writes. Source: axolotl 067b021
// kernels/lora.py LoRA_QKV, LoRA_MLP, LoRA_O, matmul_lora.
#pragma once

#include <vector>

#include "estimator/frameworks/pieces/huggingface/feed_forward.h"
#include "estimator/frameworks/pieces/huggingface/linear.h"

namespace shardplan::huggingface {

// All have adapters.
bool have_adapters(const std::vector<const Linear*>& layers);

// Outputs of layers that read the same input.
eager::Tensors fused_projections(eager::Graph& graph, const std::vector<const Linear*>& layers,
                                 const eager::Tensor& input);
eager::Tensor fused_feed_forward(eager::Graph& graph, const FeedForward& layer,
                                 const eager::Tensor& input);

}  // namespace shardplan::huggingface
