// models/gpt_oss/model/moe.py (_run_experts_grouped_mm, swiglu, ScaleBiasForward), each operation
// on its own.
#include "estimator/frameworks/torchtitan/gpt_oss/layer.h"

namespace shardplan::torchtitan {

// Gate and up lie side by side, one element after the other. The product of experts' inner width.
TapeTensor GptOssLayer::bounded_gate(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  BiasedTensors& m = layer.expert;
  m.gate = tape_.make(s.inner);
  TapeTensor up = tape_.make(s.inner);
  TapeTensor steep = tape_.make(s.inner);
  m.sigmoid = tape_.make(s.inner);
  tape_.free(steep);
  m.gated = tape_.make(s.inner);
  if (!graph_saves(pass)) {
    tape_.free(m.sigmoid);
  }
  m.raised = tape_.make(s.inner);
  const TapeTensor product = tape_.make(s.inner);
  if (!graph_saves(pass)) {
    tape_.free(m.raised, m.gated, m.gate);
  }
  tape_.free(up);
  if (!graph_saves(pass)) {
    tape_.free(m.biased);
  }
  return product;
}

// A bias is repeated for every row of its expert, and zeros are put behind for the rows of none.
TapeTensor GptOssLayer::expert_products(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  BiasedTensors& m = layer.expert;
  TapeTensor first = tape_.make_product(s.wide_inner);
  m.first_experts = tape_.make(s.bias_rows);
  TapeTensor biases = tape_.make(s.first_biases);
  TapeTensor zeros = tape_.make(s.first_slack);
  TapeTensor first_bias = tape_.make(s.wide_inner);
  tape_.free(zeros, biases);
  m.biased = tape_.make(s.wide_inner);
  tape_.free(first);
  layer.product = bounded_gate(layer, pass);
  TapeTensor output = tape_.make_product(s.expert_input);
  if (!graph_saves(pass)) {
    tape_.free(layer.product);
  }
  m.second_experts = tape_.make(s.bias_rows);
  TapeTensor repeated = tape_.make(s.second_biases);
  TapeTensor divided = tape_.make(s.divides_bias ? s.second_biases : 0);
  zeros = tape_.make(s.second_slack);
  TapeTensor second_bias = tape_.make(s.expert_input);
  tape_.free(zeros, divided);
  tape_.replace(output, s.expert_input);
  tape_.free(second_bias, repeated, first_bias);
  if (!graph_saves(pass)) {
    tape_.free(m.first_experts, m.second_experts);
  }
  return output;
}

// Backward of the gate by node: bounds compare anew, and each half's gradient is a tensor of both
// with zeros.
TapeTensor GptOssLayer::bounded_gate_backward(LayerTensors& layer, TapeTensor& of_product) {
  const TitanMoe& s = sizes_.moe;
  BiasedTensors& m = layer.expert;
  TapeTensor of_up = tape_.make(s.inner);
  TapeTensor of_gated = tape_.make(s.inner);
  tape_.free(of_product, m.raised, m.gated);
  TapeTensor of_sigmoid = tape_.make(s.inner);
  TapeTensor of_gate = tape_.make(s.inner);
  tape_.free(of_gated, m.gate);
  TapeTensor of_steep = tape_.make(s.inner);
  tape_.free(of_sigmoid, m.sigmoid);
  TapeTensor addend = tape_.make(s.inner);
  tape_.free(of_steep);
  add(of_gate, addend, true);
  const auto bound = [&](TapeTensor& gradient, bool both_ways) {
    TapeTensor above = tape_.make(s.truths);
    TapeTensor below = tape_.make(both_ways ? s.truths : 0);
    TapeTensor bounded = tape_.make(s.inner);
    tape_.free(below, above);
    std::swap(gradient, bounded);
    tape_.free(bounded);
  };
  bound(of_up, true);
  bound(of_gate, false);
  tape_.free(m.biased);
  TapeTensor sum = tape_.make(s.wide_inner);
  tape_.free(of_up);
  addend = tape_.make(s.wide_inner);
  tape_.free(of_gate);
  add(sum, addend, true);
  return sum;
}

TapeTensor GptOssLayer::experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                         LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  BiasedTensors& m = layer.expert;
  const auto of = [&](Weight weight) -> TapeTensor& {
    return weights.weights[static_cast<std::size_t>(weight)];
  };
  of(Weight::kDownBias) = tape_.make(sizes_.weight(Weight::kDownBias));
  tape_.free(m.second_experts);
  of(Weight::kDown) = tape_.make_product(sizes_.weight(Weight::kDown));
  TapeTensor of_product = tape_.make(s.inner);
  tape_.free(of_output, layer.product);
  TapeTensor of_first = bounded_gate_backward(layer, of_product);
  of(Weight::kGateBias) = tape_.make(sizes_.weight(Weight::kGateBias));
  tape_.free(m.first_experts);
  of(Weight::kGate) = tape_.make_product(sizes_.weight(Weight::kGate));
  const TapeTensor of_rows = tape_.make(s.expert_input);
  tape_.free(of_first, layer.moe.padded);
  return of_rows;
}

}  // namespace shardplan::torchtitan
