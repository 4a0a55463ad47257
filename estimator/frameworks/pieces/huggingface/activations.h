// Activations of FFNs without a gate. Source: transformers 5.17 activations.py.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

// ReLUSquaredActivation (Nemotron, Arcee).
eager::Tensor squared_relu(eager::Graph& graph, const eager::Tensor& input);

// Both of a layer's learned numbers of xIELU (Apertus).
struct XieluWeights {
  eager::Parameter positive, negative;
};
// XIELUActivation without its CUDA kernel (_xielu_python).
eager::Tensor xielu(eager::Graph& graph, const XieluWeights& weights, const eager::Tensor& input);

// NewGELUActivation: a power of three, which autocast has in fp32, and tanh.
eager::Tensor new_gelu(eager::Graph& graph, const eager::Tensor& input);

// One of those without numbers of its own; gelu saves and makes as much as silu.
eager::Tensor activate(eager::Graph& graph, Activation activation, const eager::Tensor& input);

}  // namespace shardplan::huggingface
