// A torchtitan layer as TorchInductor runs it. Tensors are those of the code that PyTorch 2.11
// generates, in the order of the traces; a kernel writes over an input that it uses up where both
// have one size. Within a backward graph Inductor orders kernels by size
// (torch/_inductor/memory.py); here they stand as for layers of 8B models.
#pragma once

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

class CompiledLayer {
 public:
  CompiledLayer(TitanTape& tape, const TitanSizes& sizes) : tape_(tape), sizes_(sizes) {}

  // As EagerLayer.
  TapeTensor forward(LayerTensors& layer, LayerPass pass);
  void backward(LayerTensors& layer, TapeTensor& gradient, LayerGradients& weights,
                LayerPass replay);

 private:
  // What forward leaves for its own last steps.
  struct Leftovers {
    TapeTensor norm;    // its buffer, once the products have read it
    TapeTensor stream;  // where the sum of input and attention lies
    TapeTensor turned;  // queries in fp32
  };
  // Gradients of the inputs of w3 and w1.
  struct FeedForwardGradients {
    TapeTensor of_up, of_gate;
  };
  // Gradients on their way to the products of attention, and of the input of wv.
  struct AttentionGradients {
    TapeTensor output, query, key, value, input;
  };

  // compiled_layer.cpp
  TapeTensor gather();
  TapeTensor reduce(TapeTensor& partial);
  TapeTensor product(LayerTensors& layer, Weight weight, std::int64_t bytes, LayerPass pass);
  void project(LayerTensors& layer, LayerPass pass);
  void rotate(LayerTensors& layer, LayerPass pass, Leftovers& left);
  void rotate_halves(LayerTensors& layer, LayerPass pass, Leftovers& left);
  void attend(LayerTensors& layer, LayerPass pass, Leftovers& left);
  void attend_ring(LayerTensors& layer, LayerPass pass, Leftovers& left);
  void project_output(LayerTensors& layer, LayerPass pass, Leftovers& left);
  TapeTensor feed_forward(LayerTensors& layer, LayerPass pass, Leftovers& left);

  // compiled_backward.cpp
  void make_weight(LayerGradients& weights, Weight weight);
  void replay_attention(LayerTensors& layer);
  void replay_feed_forward(LayerTensors& layer, LayerPass replay);
  FeedForwardGradients feed_forward_backward(LayerTensors& layer, LayerGradients& weights,
                                             TapeTensor& of_output, LayerPass replay);
  AttentionGradients attention_backward(LayerTensors& layer, LayerPass replay);
  void replay_rotation(LayerTensors& layer);
  void replay_halves(LayerTensors& layer);
  void halves_backward(LayerTensors& layer, AttentionGradients& gradients);
  void ring_backward(LayerTensors& layer, AttentionGradients& gradients);

  TitanTape& tape_;
  const TitanSizes& sizes_;
};

}  // namespace shardplan::torchtitan
