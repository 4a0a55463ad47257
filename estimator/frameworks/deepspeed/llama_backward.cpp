// Backward of the model of transformers, and what it leaves of gradients.
#include "estimator/frameworks/deepspeed/llama.h"

#include <utility>

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

}  // namespace

std::int64_t EagerLlama::parameter_bytes(const ModuleCall& call) const {
  return sizes_.parameters[static_cast<std::size_t>(call.parameter)];
}

TapeTensor EagerLlama::weight_gradient(const ModuleCall& linear) {
  const InRow row(tape_, TapeRow::kWeightGradients);
  return make_product(tape_, parameter_bytes(linear));
}

void EagerLlama::take_gradient(const ModuleCall& linear, TapeTensor of_weight) {
  if (linear.module == Module::kHead && sizes_.ties_tables) {
    tied_gradient_ = of_weight;
  } else {
    hooks_.take(linear.parameter, of_weight);
  }
}

// The weight's gradient, then the input's.
TapeTensor EagerLlama::product_backward(const ModuleCall& linear, std::int64_t input_bytes,
                                        std::initializer_list<TapeTensor*> last_used) {
  hooks_.before_backward(linear);
  const TapeTensor of_weight = weight_gradient(linear);
  const TapeTensor of_input = tape_.make(input_bytes);
  for (TapeTensor* tensor : last_used) { tape_.free(*tensor); }
  take_gradient(linear, of_weight);
  hooks_.after_backward(linear);
  return of_input;
}

// Of the product with the weight, the cast, the product with the root, the root of the mean of
// squares; the square's factor 2*x is computed anew (pow_backward).
TapeTensor EagerLlama::norm_backward(const ModuleCall& norm, LlamaNorm& tensors,
                                     TapeTensor& of_output) {
  const InRow row(tape_, TapeRow::kWideNormGradients);
  const auto [input, statistics, column_sums] = sizes_of(norm);
  const std::int64_t wide = kWiden * input;
  hooks_.before_backward(norm);
  TapeTensor of_normed = make_as(tape_, TapeRow::kNormGradients, input);
  TapeTensor products = make_as(tape_, TapeRow::kNormGradients, input);
  const TapeTensor of_weight = make_as(tape_, TapeRow::kWeightGradients, parameter_bytes(norm));
  tape_.free(products, of_output, tensors.normed);
  hooks_.take(norm.parameter, of_weight);
  TapeTensor of_scaled = tape_.make(wide);
  tape_.free(of_normed);
  TapeTensor of_roots = tape_.make(wide);
  TapeTensor of_input = tape_.make(wide);
  TapeTensor of_root = tape_.make(statistics);
  tape_.free(of_roots, of_scaled);
  tape_.replace(of_root, statistics);
  TapeTensor of_squares = tape_.make(wide);
  tape_.free(of_root);
  TapeTensor power = tape_.make(wide);
  TapeTensor doubled = tape_.make(wide);
  TapeTensor by_square = tape_.make(wide);
  tape_.free(power, doubled, of_squares, tensors.input, tensors.root);
  tape_.free(by_square);
  const TapeTensor gradient = make_as(tape_, TapeRow::kNormGradients, input);
  tape_.free(of_input);
  hooks_.after_backward(norm);
  return gradient;
}

// Halves of the turned gradient in tensors of zeros.
void EagerLlama::turn_backward(TapeTensor& gradient) {
  const InRow row(tape_, TapeRow::kAttentionGradients);
  const std::int64_t bytes = gradient.bytes;
  TapeTensor by_sines = tape_.make(bytes);
  TapeTensor negated = tape_.make(bytes / 2);
  const TapeTensor sum = tape_.make(bytes);
  tape_.free(negated);
  TapeTensor other_half = tape_.make(bytes);
  tape_.free(by_sines, other_half);
  TapeTensor by_cosines = tape_.make(bytes);
  tape_.free(gradient, by_cosines);
  gradient = sum;
}

void EagerLlama::lay_as_projection(TapeTensor& gradient) {
  tape_.replace(gradient, gradient.bytes);
}

void EagerLlama::unturned_gradient(const ModuleCall& norm, LlamaNorm& tensors,
                                   TapeTensor& gradient) {
  const InRow row(tape_, TapeRow::kAttentionGradients);
  if (sizes_.norms_heads) {
    gradient = norm_backward(norm, tensors, gradient);
  }
  lay_as_projection(gradient);
}

void EagerLlama::add_residual(TapeTensor& gradient, TapeTensor& addend, bool in_place) {
  const InRow row(tape_, TapeRow::kResidualGradient);
  if (in_place) {
    tape_.free(addend);
    return;
  }
  const TapeTensor sum = tape_.make(gradient.bytes);
  tape_.free(addend);
  gradient = sum;
}

// silu's gradient stays in silu's place.
TapeTensor EagerLlama::up_gradient(LlamaLayer& layer, TapeTensor& of_product) {
  const TapeTensor of_up = tape_.make(sizes_.ffn);
  const TapeTensor of_silu = tape_.make(sizes_.ffn);
  tape_.free(of_product, layer.silu, layer.up);
  layer.silu = of_silu;
  return of_up;
}

TapeTensor EagerLlama::gate_gradient(std::int64_t index, LlamaLayer& layer) {
  hooks_.before_backward(call(Module::kActivation, index));
  const TapeTensor of_gate = tape_.make(sizes_.ffn);
  tape_.free(layer.silu, layer.gate);
  hooks_.after_backward(call(Module::kActivation, index));
  return of_gate;
}

void EagerLlama::ffn_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient,
                              bool in_place) {
  const InRow row(tape_, TapeRow::kFfnGradients);
  hooks_.before_backward(call(Module::kFfn, index));
  TapeTensor of_product =
      product_backward(call(Module::kDown, index), sizes_.ffn, {&layer.product});
  TapeTensor of_up = up_gradient(layer, of_product);
  TapeTensor of_input = product_backward(call(Module::kUp, index), sizes_.sequence, {&of_up});
  TapeTensor of_gate = gate_gradient(index, layer);
  TapeTensor addend = product_backward(call(Module::kGate, index), sizes_.sequence,
                                       {&of_gate, &layer.ffn_norm.output});
  tape_.free(addend);
  hooks_.after_backward(call(Module::kFfn, index));
  TapeTensor of_residual = norm_backward(call(Module::kFfnNorm, index), layer.ffn_norm, of_input);
  add_residual(gradient, of_residual, in_place);
}

// flash_api.cpp, mha_bwd: gradients, softmax's sums, dQ in fp32, keys and values expanded to all
// heads.
void EagerLlama::attention_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient) {
  const InRow row(tape_, TapeRow::kAttentionGradients);
  hooks_.before_backward(call(Module::kAttention, index));
  TapeTensor of_output = product_backward(call(Module::kOutput, index), sizes_.query, {});
  TapeTensor of_query = tape_.make(sizes_.query);
  TapeTensor of_key = tape_.make(sizes_.key);
  TapeTensor of_value = tape_.make(sizes_.key);
  TapeTensor sums = make_as(tape_, TapeRow::kWideAttentionGradients, sizes_.log_sum_exp);
  TapeTensor accumulator = make_as(tape_, TapeRow::kWideAttentionGradients, kWiden * sizes_.query);
  TapeTensor all_keys = tape_.make(sizes_.has_grouped_heads ? sizes_.query : 0);
  TapeTensor all_values = tape_.make(sizes_.has_grouped_heads ? sizes_.query : 0);
  tape_.free(sums, accumulator, all_keys, all_values, of_output);
  tape_.free(layer.query, layer.key, layer.value, layer.output, layer.log_sum_exp);
  turn_backward(of_key);
  turn_backward(of_query);
  TapeTensor of_input = product_backward(call(Module::kValue, index), sizes_.sequence, {&of_value});
  unturned_gradient(call(Module::kKeyNorm, index), layer.key_norm, of_key);
  TapeTensor addend = product_backward(call(Module::kKey, index), sizes_.sequence, {&of_key});
  tape_.free(addend);
  unturned_gradient(call(Module::kQueryNorm, index), layer.query_norm, of_query);
  addend = product_backward(call(Module::kQuery, index), sizes_.sequence,
                            {&of_query, &layer.norm.output});
  tape_.free(addend);
  TapeTensor of_residual = norm_backward(call(Module::kAttentionNorm, index), layer.norm, of_input);
  add_residual(gradient, of_residual, true);
}

// A recomputed layer's output, and its gradient, stay until its own backward has ended
// (torch/utils/checkpoint.py, CheckpointFunction.backward).
void EagerLlama::layer_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient) {
  TapeTensor of_output;
  TapeTensor output;
  if (checkpoints_) {
    tape_.begin(MomentKind::kReplay);
    TapeTensor input;  // the layer's own, which stays
    output = layer_forward(index, layer, input, true);
    of_output = gradient;
  }
  tape_.begin(MomentKind::kBackward);
  hooks_.before_backward(call(Module::kLayer, index));
  ffn_backward(index, layer, gradient, !checkpoints_);
  attention_backward(index, layer, gradient);
  hooks_.after_backward(call(Module::kLayer, index));
  tape_.free(output, of_output, layer.input);
}

// nll_loss makes a gradient of the log-softmax, that one of the logits in fp32. 0.18.3 to 0.19.5
// divide the logits' by the number of microbatches (engine.py, _backward_prologue_per_tensor),
// others the loss.
TapeTensor EagerLlama::loss_backward() {
  const InRow row(tape_, TapeRow::kWideLogitsGradients);
  TapeTensor of_log_softmax = tape_.make(kWiden * sizes_.logits);
  tape_.free(labels_);
  TapeTensor of_wide = tape_.make(kWiden * sizes_.logits);
  tape_.free(of_log_softmax, log_softmax_);
  const InRow narrow(tape_, TapeRow::kLogitsGradient);
  TapeTensor of_logits = tape_.make(sizes_.logits);
  tape_.free(of_wide);
  if (sizes_.divides_logits_gradient) {
    tape_.replace(of_logits, sizes_.logits);
  }
  return product_backward(call(Module::kHead), sizes_.sequence, {&of_logits, &final_norm_.output});
}

TapeTensor EagerLlama::head_backward() {
  tape_.begin(MomentKind::kLossBackward);
  hooks_.before_backward(call(Module::kCausalLm));
  TapeTensor of_norm = loss_backward();
  hooks_.before_backward(call(Module::kModel));
  return norm_backward(call(Module::kFinalNorm), final_norm_, of_norm);
}

void EagerLlama::embedding_backward(TapeTensor& gradient) {
  const ModuleCall embedding = call(Module::kEmbedding);
  hooks_.before_backward(embedding);
  TapeTensor of_table = make_as(tape_, TapeRow::kWeightGradients, parameter_bytes(embedding));
  TapeTensor workspace = make_as(tape_, TapeRow::kTableWorkspace, sizes_.table_workspace);
  tape_.free(workspace, gradient, token_ids_);
  if (tied_gradient_.id != 0) {
    tape_.free(of_table);
    of_table = std::exchange(tied_gradient_, {});
  }
  hooks_.take(embedding.parameter, of_table);
}

void EagerLlama::backward() {
  tape_.enter_thread(true);
  TapeTensor gradient = head_backward();
  for (std::int64_t i = sizes_.num_layers - 1; i >= 0; --i) {
    layer_backward(i, layers_[static_cast<std::size_t>(i)], gradient);
  }
  tape_.free(cosines_, sines_);
  embedding_backward(gradient);
}

}  // namespace shardplan::deepspeed
