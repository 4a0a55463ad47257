// A layer of GPT-OSS as torchtitan runs it (models/gpt_oss/model of v0.2.2): flex_attention with
// sinks behind it, and experts with biases and a bounded gate. Dispatch and combination of experts
// are every mixture's.
#pragma once

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {

class GptOssLayer : public EagerLayer {
 public:
  using EagerLayer::EagerLayer;

 protected:
  // gpt_oss/attention.cpp
  void attention(LayerTensors& layer, LayerPass pass) override;
  void attention_backward(LayerTensors& layer, TapeTensor& gradient,
                          LayerGradients& weights) override;

  // gpt_oss/experts.cpp
  TapeTensor expert_products(LayerTensors& layer, LayerPass pass) override;
  TapeTensor experts_backward(LayerTensors& layer, TapeTensor& of_output,
                              LayerGradients& weights) override;

 private:
  TapeTensor biased_backward(LayerGradients& weights, Weight weight, std::int64_t input_bytes,
                             TapeTensor& gradient, std::initializer_list<TapeTensor*> last_used);
  void turn_back(TapeTensor& gradient, TapeTensor* cosines);
  void flex_attend(LayerTensors& layer, LayerPass pass);
  void weigh_output(LayerTensors& layer, LayerPass pass);
  TapeTensor weigh_output_backward(LayerTensors& layer, TapeTensor& of_weighted,
                                   TapeTensor& of_statistics);
  TapeTensor bounded_gate(LayerTensors& layer, LayerPass pass);
  TapeTensor bounded_gate_backward(LayerTensors& layer, TapeTensor& of_product);
};

}  // namespace shardplan::torchtitan
