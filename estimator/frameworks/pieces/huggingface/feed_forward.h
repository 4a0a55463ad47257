// The FFN of a layer or of shared experts: gate and up projections apart or as one, or up alone,
// and down. Sources: transformers 5.17 models/llama/modeling_llama.py LlamaMLP,
// models/phi3/modeling_phi3.py Phi3MLP; Liger 0.8.0 transformers/swiglu.py LigerSwiGLUMLP,
// LigerPhi3SwiGLUMLP.
#pragma once

#include "estimator/frameworks/pieces/huggingface/activations.h"
#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

struct FeedForward {
  Linear gate, up, down;
  Linear gate_up;              // in place of gate and up
  Linear narrowing, widening;  // of a bottleneck behind the FFN; undefined: none
  Activation activation = Activation::kSilu;
  XieluWeights xielu;
  bool scales_parts = false;  // the gate in front of its activation, and the output

  bool is_defined() const { return down.shape.inputs > 0; }
  bool is_gated() const { return up.shape.inputs == 0 || gate.shape.inputs > 0; }
};

eager::Tensor feed_forward(eager::Graph& graph, FeedForward& layer, const eager::Tensor& input,
                           bool uses_liger);

// Halves of every row are views, of which one is activated and multiplied by the other; their
// gradients are put together.
eager::Tensor gated_halves(eager::Graph& graph, const eager::Tensor& rows);

}  // namespace shardplan::huggingface
