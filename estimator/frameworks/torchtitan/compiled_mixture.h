// A torchtitan layer with a mixture of experts under torch.compile: norms, attention, router and
// the experts' products are graphs of their own, with eager operations between them (apply_compile
// of models/llama4/infra/parallelize.py at v0.2.2). A graph saves the same under every recompute
// policy; what a checkpoint does not keep is dropped when the graph has run.
#pragma once

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

class CompiledMixture final : public EagerLayer {
 public:
  using EagerLayer::EagerLayer;

 protected:
  // compiled_attention.cpp
  void attention(LayerTensors& layer, LayerPass pass) override;
  void attention_backward(LayerTensors& layer, TapeTensor& gradient,
                          LayerGradients& weights) override;

  // compiled_mixture.cpp
  void norm_backward(TapeTensor& gradient, TapeTensor& of_output, TapeTensor& input,
                     TapeTensor& statistics) override;
  void route(LayerTensors& layer, LayerPass pass) override;
  void route_backward(LayerTensors& layer, TapeTensor& of_tokens, TapeTensor& of_weights,
                      LayerGradients& weights) override;
  TapeTensor expert_products(LayerTensors& layer, LayerPass pass) override;
  TapeTensor experts_backward(LayerTensors& layer, TapeTensor& of_output,
                              LayerGradients& weights) override;

 private:
  // Gradients of rotated queries and keys and of values, bf16.
  struct CoreGradients {
    TapeTensor query, key, value;
  };

  TapeTensor& cast_of(LayerTensors& layer, Weight weight) {
    return layer.casts[static_cast<std::size_t>(weight)].weight;
  }
  TapeTensor& gradient_of(LayerGradients& weights, Weight weight) {
    return weights.weights[static_cast<std::size_t>(weight)];
  }
  void make_weight(LayerGradients& weights, Weight weight);
  TapeTensor cast_experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                   LayerGradients& weights);

  // compiled_attention.cpp
  void rotate(LayerTensors& layer, LayerPass pass);
  void attend(LayerTensors& layer, LayerPass pass);
  TapeTensor project_output(LayerTensors& layer, LayerPass pass);
  void drop_attention(LayerTensors& layer, LayerPass pass);
  CoreGradients core_backward(LayerTensors& layer, TapeTensor& of_output);
  CoreGradients ring_backward(LayerTensors& layer, TapeTensor& of_output);
  void head_norms_backward(LayerTensors& layer, CoreGradients& gradients);
  TapeTensor projections_backward(LayerTensors& layer, CoreGradients& gradients,
                                  LayerGradients& weights);
  TapeTensor cast_projections_backward(LayerTensors& layer, CoreGradients& gradients,
                                       LayerGradients& weights);
};

}  // namespace shardplan::torchtitan
