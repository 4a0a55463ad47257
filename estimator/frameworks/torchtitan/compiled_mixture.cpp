#include "estimator/frameworks/torchtitan/compiled_mixture.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

constexpr std::int64_t kNormRowsOfPart = 16;  // whose gradients of a norm's weight are one row

}  // namespace

// Parts of the gradient of the weight, in fp32, besides.
void CompiledMixture::norm_backward(TapeTensor& gradient, TapeTensor& of_output, TapeTensor& input,
                                    TapeTensor& statistics) {
  TapeTensor of_input = tape_.make(sizes_.residual);
  TapeTensor parts = tape_.make(kWiden * sizes_.sequence / kNormRowsOfPart);
  tape_.free(parts);
  tape_.free(input, of_output, statistics);
  add(gradient, of_input, gradient.id != 0);
}

// Probabilities are computed again from logits, their maxima and the sums of exponentials.
void CompiledMixture::route(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  ProductCasts& casts = layer.casts[static_cast<std::size_t>(Weight::kRouter)];
  if (sizes_.autocast) {
    casts.input = tape_.make(sizes_.sequence);
    casts.weight = tape_.make(sizes_.weight(Weight::kRouter));
  }
  m.logits = tape_.make_product(s.logits);
  m.probabilities = tape_.make(2 * s.denominators);
  m.choices = tape_.make(s.choices);
  m.denominators = tape_.make(s.denominators);
  m.weights = tape_.make(s.weights);
  m.chosen = tape_.make(s.weights);
  if (!graph_saves(pass)) {
    tape_.free(casts.input, m.logits, m.probabilities, m.denominators, m.chosen, casts.weight);
  }
}

void CompiledMixture::route_backward(LayerTensors& layer, TapeTensor& of_tokens,
                                     TapeTensor& of_weights, LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  ProductCasts& casts = layer.casts[static_cast<std::size_t>(Weight::kRouter)];
  TapeTensor of_scores = tape_.make(s.scores);
  tape_.free(m.denominators, m.chosen, m.choices, of_weights, m.probabilities, of_scores);
  make_weight(weights, Weight::kRouter);
  tape_.free(casts.input, layer.ffn_norm, layer.ffn_gathered);
  TapeTensor addend =
      tape_.make_product(sizes_.tensor_parallel ? sizes_.gathered : sizes_.sequence);
  tape_.free(m.logits, casts.weight);
  if (sizes_.autocast) {
    tape_.replace(addend, sizes_.residual);
  }
  finish_weight(weights, Weight::kRouter);
  add(of_tokens, addend, true);
}

// Under autocast the experts' weights are cast twice, once as the product reads them, once as
// backward does; one buffer serves the products of all three.
TapeTensor CompiledMixture::expert_products(LayerTensors& layer, LayerPass pass) {
  const TitanMoe& s = sizes_.moe;
  TapeTensor& input = layer.casts[static_cast<std::size_t>(Weight::kGate)].input;
  const std::int64_t cast = sizes_.autocast ? sizes_.weight(Weight::kGate) : 0;
  input = tape_.make(sizes_.autocast ? s.expert_input : 0);
  TapeTensor as_read = tape_.make(cast);
  cast_of(layer, Weight::kGate) = tape_.make(cast);
  layer.gate = tape_.make_product(s.inner);
  cast_of(layer, Weight::kUp) = tape_.make(cast);
  layer.up = tape_.make(s.inner);
  layer.product = tape_.make(s.inner);
  cast_of(layer, Weight::kDown) = tape_.make(cast);
  TapeTensor output = tape_.make(s.expert_input);
  tape_.free(as_read);
  if (sizes_.autocast) {
    tape_.replace(output, s.padded_rows);
  }
  if (!graph_saves(pass)) {
    tape_.free(input, layer.gate, layer.up, layer.product, cast_of(layer, Weight::kDown),
               cast_of(layer, Weight::kUp), cast_of(layer, Weight::kGate));
  }
  return output;
}

// The gradient of gate is written over the output of w3.
TapeTensor CompiledMixture::experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                             LayerGradients& weights) {
  if (sizes_.autocast) {
    return cast_experts_backward(layer, of_output, weights);
  }
  const TitanMoe& s = sizes_.moe;
  make_weight(weights, Weight::kDown);
  tape_.free(layer.product);
  TapeTensor of_product = tape_.make_product(s.inner);
  TapeTensor of_up = tape_.make(s.inner);
  tape_.free(layer.gate, of_product);
  make_weight(weights, Weight::kUp);
  const TapeTensor sum = tape_.make(s.expert_input);
  tape_.free(of_up);
  make_weight(weights, Weight::kGate);
  tape_.free(layer.moe.padded);
  TapeTensor addend = tape_.make(s.expert_input);
  tape_.free(layer.up, addend, of_output);
  return sum;
}

TapeTensor CompiledMixture::cast_experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                                  LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  TapeTensor by_rows = tape_.make(s.expert_input);
  TapeTensor as_read = tape_.make(s.expert_input);
  TapeTensor of_product = tape_.make_product(s.inner);
  tape_.free(as_read, cast_of(layer, Weight::kDown));
  make_weight(weights, Weight::kDown);
  tape_.free(by_rows, layer.product);
  TapeTensor of_up = tape_.make(s.inner);
  tape_.free(layer.gate, of_product);
  TapeTensor of_up_input = tape_.make(s.expert_input);
  tape_.free(cast_of(layer, Weight::kUp));
  TapeTensor of_gate_input = tape_.make(s.expert_input);
  tape_.free(cast_of(layer, Weight::kGate));
  const TapeTensor sum = tape_.make(s.padded_rows);
  tape_.free(of_gate_input, of_up_input);
  make_weight(weights, Weight::kUp);
  tape_.free(of_up);
  make_weight(weights, Weight::kGate);
  tape_.free(layer.up, layer.casts[static_cast<std::size_t>(Weight::kGate)].input);
  const std::array experts = {Weight::kDown, Weight::kUp, Weight::kGate};
  for (const Weight weight : experts) {
    tape_.replace(gradient_of(weights, weight), kWiden * sizes_.weight(weight));
  }
  tape_.free(of_output);
  for (const Weight weight : experts) {
    if (weights.accumulates) {
      tape_.free(gradient_of(weights, weight));
    }
  }
  return sum;
}

}  // namespace shardplan::torchtitan
