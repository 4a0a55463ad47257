// models/gpt_oss/model/model.py (Attention, apply_rotary_emb), each operation on its own but
// flex_attention, which models/attention.py (FlexAttentionWrapper) compiles whatever the run says.
#include "estimator/frameworks/torchtitan/gpt_oss/layer.h"
#include "estimator/frameworks/torchtitan/qwen3.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kHalf = 2;  // bf16 of fp32

}  // namespace

// The compiled graph makes statistics, room for them scaled, and the output in the strides of the
// queries. A checkpoint by operations saves what it returns, with the output its inputs, which the
// replay makes again all the same.
void GptOssLayer::flex_attend(LayerTensors& layer, LayerPass pass) {
  if (pass == LayerPass::kReplayOps) {
    return;
  }
  layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  layer.sink.scaled_statistics = tape_.make(sizes_.log_sum_exp);
  layer.output = tape_.make(sizes_.query);
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.log_sum_exp);
  }
}

// The output times sigmoid(statistics - sinks).
void GptOssLayer::weigh_output(LayerTensors& layer, LayerPass pass) {
  TapeTensor shifted = tape_.make(sizes_.log_sum_exp);
  layer.sink.factors = tape_.make(sizes_.log_sum_exp);
  tape_.free(shifted);
  layer.sink.cast_factors = tape_.make(sizes_.log_sum_exp / kHalf);
  layer.output_copy = tape_.make(sizes_.query);
  if (!graph_saves(pass)) {
    tape_.free(layer.sink.cast_factors);
  }
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.output);
  }
}

void GptOssLayer::attention(LayerTensors& layer, LayerPass pass) {
  const bool replays_ops = pass == LayerPass::kReplayOps;
  const bool keeps_inputs = graph_saves(pass) || pass == LayerPass::kSavesOps;
  layer.norm = tape_.make(sizes_.residual);
  layer.norm_statistics = tape_.make(sizes_.statistics);
  if (!graph_saves(pass)) {
    tape_.free(layer.norm_statistics);
  }
  if (sizes_.tensor_parallel) {
    layer.gathered = gather(sizes_.joins_batch);
  }
  TapeTensor query = product(layer, Weight::kQuery, sizes_.query, pass);
  tape_.make_bias_workspace();
  TapeTensor key = product(layer, Weight::kKey, sizes_.key, pass);
  TapeTensor value = product(layer, Weight::kValue, sizes_.key, pass);
  take_rotary(layer, pass);
  TapeTensor turned_query = turn_halves(tape_, sizes_.query);
  TapeTensor turned_key = turn_halves(tape_, sizes_.key);
  tape_.free(query, key);
  flex_attend(layer, pass);
  weigh_output(layer, pass);
  TapeTensor projected = product(layer, Weight::kOutput, sizes_.gathered, pass);
  if (sizes_.tensor_parallel) {
    const TapeTensor reduced = reduce(replays_ops);
    tape_.free(projected);
    projected = replays_ops ? std::exchange(layer.reduced_output, {}) : reduced;
  }
  if (keeps_inputs && !replays_ops) {
    layer.rotated_query = std::exchange(turned_query, {});
    layer.rotated_key = std::exchange(turned_key, {});
    layer.value = std::exchange(value, {});
  }
  tape_.free(turned_query, turned_key, value);
  if (pass != LayerPass::kSavesOps) {
    tape_.free(layer.sink.scaled_statistics);
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.sink.factors, layer.output_copy, layer.gathered);
  }
  if (!graph_saves(pass) || sizes_.tensor_parallel) {
    tape_.free(layer.norm);
  }
  layer.after_attention = tape_.make(sizes_.residual);
  if (pass == LayerPass::kSavesOps && sizes_.tensor_parallel) {
    layer.reduced_output = std::exchange(projected, {});
  }
  tape_.free(projected);
}

// The gradient of the output as flex_attention made it.
TapeTensor GptOssLayer::weigh_output_backward(LayerTensors& layer, TapeTensor& of_weighted,
                                              TapeTensor& of_statistics) {
  TapeTensor of_factors = tape_.make(sizes_.query);  // before it is summed over the head
  const TapeTensor of_output = tape_.make(sizes_.query);
  tape_.free(of_weighted, layer.sink.cast_factors);
  TapeTensor summed = tape_.make(sizes_.log_sum_exp / kHalf);
  tape_.free(of_factors);
  TapeTensor wide = tape_.make(sizes_.log_sum_exp);
  tape_.free(summed);
  of_statistics = tape_.make(sizes_.log_sum_exp);
  tape_.free(wide, layer.sink.factors);
  TapeTensor negated = tape_.make(sizes_.log_sum_exp);  // of the sinks, before it is summed
  tape_.free(negated);
  return of_output;
}

// Addmm's gradients: of the input, of the weight, and a sum over all rows for the bias.
TapeTensor GptOssLayer::biased_backward(LayerGradients& weights, Weight weight,
                                        std::int64_t input_bytes, TapeTensor& gradient,
                                        std::initializer_list<TapeTensor*> last_used) {
  const TapeTensor of_input = tape_.make_product(input_bytes);
  weights.weights[static_cast<std::size_t>(weight)] = tape_.make(sizes_.weight(weight));
  TapeTensor sum = tape_.make(sizes_.bias_sum(weight));
  tape_.free(sum, gradient);
  for (TapeTensor* tensor : last_used) { tape_.free(*tensor); }
  return of_input;
}

// As Qwen 3's, but that sums are added up in place: no norm in front holds them.
void GptOssLayer::turn_back(TapeTensor& gradient, TapeTensor* cosines) {
  const std::int64_t bytes = gradient.bytes;
  TapeTensor of_halves = tape_.make(bytes);
  TapeTensor negated = tape_.make(bytes / kHalf);
  TapeTensor sum = tape_.make(bytes);
  tape_.free(negated);
  TapeTensor second = tape_.make(bytes);
  tape_.free(of_halves, second);
  TapeTensor by_cosine = tape_.make(bytes);
  tape_.free(gradient);
  if (cosines != nullptr) {
    tape_.free(*cosines);
  }
  tape_.free(by_cosine);
  gradient = std::exchange(sum, {});
}

void GptOssLayer::attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                     LayerGradients& weights) {
  TapeTensor of_projection = projection_gradient();
  TapeTensor of_weighted =
      biased_backward(weights, Weight::kOutput, sizes_.query, of_projection, {&layer.output_copy});
  TapeTensor of_statistics;
  TapeTensor of_output = weigh_output_backward(layer, of_weighted, of_statistics);
  // The graph takes gradients that lie by heads (torch _functorch, coerce_tangent_and_suggest_
  // memory_format); products of outputs and their gradients are summed first.
  TapeTensor copy = tape_.make(sizes_.query);
  TapeTensor sums = tape_.make(sizes_.log_sum_exp);
  tape_.free(layer.output);
  TapeTensor of_query = tape_.make(sizes_.query);
  TapeTensor of_key = tape_.make(sizes_.key);
  TapeTensor of_value = tape_.make(sizes_.key);
  tape_.free(sums, layer.log_sum_exp, layer.rotated_query, layer.rotated_key, layer.value, copy,
             of_output, of_statistics);
  turn_back(of_key, nullptr);
  turn_back(of_query, &layer.cosines);
  TapeTensor sum = biased_backward(weights, Weight::kValue, sizes_.gathered, of_value, {});
  TapeTensor addend = biased_backward(weights, Weight::kKey, sizes_.gathered, of_key, {});
  add(sum, addend, false);
  addend = biased_backward(weights, Weight::kQuery, sizes_.gathered, of_query,
                           {&layer.norm, &layer.gathered});
  add(sum, addend, !sizes_.tensor_parallel);
  TapeTensor of_norm = reduce_gradient(sum);
  norm_backward(gradient, of_norm, layer.input, layer.norm_statistics);
}

}  // namespace shardplan::torchtitan
