#include "estimator/frameworks/deepspeed/llama.h"

#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/pieces/table_gradient.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16
constexpr std::int64_t kFp32 = 4;

}  // namespace

LlamaSizes::LlamaSizes(const Job& job, const Plan& plan) {
  const BlockShape s = block_shape(job, plan);
  const std::int64_t half = bytes_of(activation_dtype(plan.precision));
  num_layers = job.model.num_layers();
  ties_tables = job.model.tied_embeddings;
  has_grouped_heads = job.model.num_heads != job.model.num_kv_heads;
  norms_heads = job.model.qk_norm;
  divides_logits_gradient = job.profile.divides_logits_gradient;
  token_ids = bytes_of(DType::kInt64) * s.tokens;
  rotary_angles = kFp32 * job.sequence_length * job.model.head_dim;
  sequence = half * s.hidden * s.tokens;
  query = half * s.query_width * s.tokens;
  key = half * s.key_value_width * s.tokens;
  norm = {.input = sequence, .statistics = kFp32 * s.tokens, .column_sums = kFp32 * s.hidden};
  query_norm = {.input = query,
                .statistics = kFp32 * s.query_heads * s.tokens,
                .column_sums = kFp32 * job.model.head_dim};
  key_norm = {.input = key,
              .statistics = kFp32 * s.key_value_heads * s.tokens,
              .column_sums = kFp32 * job.model.head_dim};
  ffn = half * job.model.ffn * s.tokens;
  log_sum_exp = kFp32 * s.query_heads * s.tokens;
  logits = half * s.local_vocab * s.tokens;
  table_workspace = table_workspace_bytes(s.tokens, s.local_vocab, s.hidden);
  parameters = deepspeed_tensors(job.model);
  for (std::int64_t& bytes : parameters) { bytes *= half; }
}

// In the order of deepspeed_tensors.
ModuleCall EagerLlama::call(Module module, std::int64_t layer) const {
  const std::int64_t head_norms = sizes_.norms_heads ? 2 : 0;
  const std::int64_t per_layer = 9 + head_norms;
  const std::int64_t first = 1 + per_layer * layer;
  const std::int64_t ffn = first + 4 + head_norms;
  const auto of = [&](std::int64_t parameter) {
    return ModuleCall{.module = module, .parameter = parameter};
  };
  switch (module) {
    case Module::kEmbedding: return of(0);
    case Module::kQuery: return of(first);
    case Module::kKey: return of(first + 1);
    case Module::kValue: return of(first + 2);
    case Module::kOutput: return of(first + 3);
    case Module::kQueryNorm: return of(first + 4);
    case Module::kKeyNorm: return of(first + 5);
    case Module::kGate: return of(ffn);
    case Module::kUp: return of(ffn + 1);
    case Module::kDown: return of(ffn + 2);
    case Module::kAttentionNorm: return of(ffn + 3);
    case Module::kFfnNorm: return of(ffn + 4);
    case Module::kFinalNorm: return of(1 + per_layer * sizes_.num_layers);
    case Module::kHead: return of(sizes_.ties_tables ? 0 : 2 + per_layer * sizes_.num_layers);
    case Module::kCausalLm:
    case Module::kModel:
    case Module::kRotary:
    case Module::kLayer:
    case Module::kAttention:
    case Module::kFfn:
    case Module::kActivation: break;
  }
  return of(ModuleCall::kNoParameter);
}

const NormSizes& EagerLlama::sizes_of(const ModuleCall& norm) const {
  switch (norm.module) {
    case Module::kQueryNorm: return sizes_.query_norm;
    case Module::kKeyNorm: return sizes_.key_norm;
    default: return sizes_.norm;
  }
}

TapeTensor EagerLlama::product(const ModuleCall& linear, std::int64_t bytes) {
  hooks_.before_forward(linear);
  const TapeTensor output = tape_.make_product(bytes);
  hooks_.after_forward(linear);
  return output;
}

// LlamaRotaryEmbedding: its fp32 product is the first that the forward's thread runs.
void EagerLlama::rotary() {
  const InRow row(tape_, TapeRow::kRotary);
  hooks_.before_forward(call(Module::kRotary));
  TapeTensor angles = tape_.make_product(sizes_.rotary_angles / 2);
  TapeTensor both = tape_.make(sizes_.rotary_angles);
  TapeTensor cosines = tape_.make(sizes_.rotary_angles);
  tape_.replace(cosines, sizes_.rotary_angles);
  TapeTensor sines = tape_.make(sizes_.rotary_angles);
  tape_.replace(sines, sizes_.rotary_angles);
  cosines_ = tape_.make(sizes_.rotary_angles / kWiden);
  sines_ = tape_.make(sizes_.rotary_angles / kWiden);
  tape_.free(angles, both, cosines, sines);
  hooks_.after_forward(call(Module::kRotary));
}

void EagerLlama::norm_forward(const ModuleCall& norm, LlamaNorm& tensors, TapeTensor&, bool saves) {
  const InRow row(tape_, TapeRow::kWideNorm);
  const auto [input, statistics, column_sums] = sizes_of(norm);
  hooks_.before_forward(norm);
  tensors.input = tape_.make(kWiden * input);
  TapeTensor squares = tape_.make(kWiden * input);
  TapeTensor mean = tape_.make(statistics);
  tape_.free(squares);
  TapeTensor shifted = tape_.make(statistics);
  tensors.root = tape_.make(statistics);
  tape_.free(shifted);
  TapeTensor scaled = tape_.make(kWiden * input);
  if (!saves) {
    tape_.free(tensors.root, tensors.input);
  }
  tensors.normed = tape_.make_as(TapeRow::kNorm, input);
  tensors.output = tape_.make_as(TapeRow::kNorm, input);
  if (!saves) {
    tape_.free(tensors.normed);
  }
  tape_.free(scaled, mean);
  hooks_.after_forward(norm);
}

// Of queries or keys.
TapeTensor EagerLlama::project(const ModuleCall& linear, const ModuleCall& norm, LlamaNorm& tensors,
                               bool saves) {
  TapeTensor projected = product(linear, sizes_of(norm).input);
  if (!sizes_.norms_heads) {
    return projected;
  }
  norm_forward(norm, tensors, projected, saves);
  tape_.free(projected);
  return std::exchange(tensors.output, {});
}

// x*cos + rotate_half(x)*sin; nothing of it is saved but the result, by the attention.
TapeTensor EagerLlama::rotate(std::int64_t bytes) {
  TapeTensor with_cosines = tape_.make(bytes);
  TapeTensor negated = tape_.make(bytes / 2);
  TapeTensor turned = tape_.make(bytes);
  tape_.free(negated);
  TapeTensor with_sines = tape_.make(bytes);
  tape_.free(turned);
  const TapeTensor sum = tape_.make(bytes);
  tape_.free(with_cosines, with_sines);
  return sum;
}

void EagerLlama::turn(TapeTensor& query, TapeTensor& key, LlamaLayer& layer) {
  layer.query = rotate(sizes_.query);
  layer.key = rotate(sizes_.key);
  tape_.free(query, key);
}

// Flash attention reads keys and values of fewer heads as they are (use_gqa_in_sdpa).
TapeTensor EagerLlama::attention_forward(std::int64_t index, LlamaLayer& layer, bool saves) {
  const InRow row(tape_, TapeRow::kAttention);
  hooks_.before_forward(call(Module::kAttention, index));
  TapeTensor query = project(call(Module::kQuery, index), call(Module::kQueryNorm, index),
                             layer.query_norm, saves);
  TapeTensor key =
      project(call(Module::kKey, index), call(Module::kKeyNorm, index), layer.key_norm, saves);
  layer.value = product(call(Module::kValue, index), sizes_.key);
  turn(query, key, layer);
  layer.output = tape_.make(sizes_.query);
  layer.log_sum_exp = tape_.make_as(TapeRow::kAttentionSums, sizes_.log_sum_exp);
  if (!saves) {
    tape_.free(layer.log_sum_exp);
  }
  const TapeTensor projected = product(call(Module::kOutput, index), sizes_.sequence);
  if (!saves) {
    tape_.free(layer.output, layer.query, layer.key, layer.value);
  }
  hooks_.after_forward(call(Module::kAttention, index));
  return projected;
}

void EagerLlama::silu_forward(std::int64_t index, LlamaLayer& layer, bool saves) {
  hooks_.before_forward(call(Module::kActivation, index));
  layer.silu = tape_.make(sizes_.ffn);
  hooks_.after_forward(call(Module::kActivation, index));
  if (!saves) {
    tape_.free(layer.gate);
  }
}

TapeTensor EagerLlama::ffn_forward(std::int64_t index, LlamaLayer& layer, bool saves) {
  const InRow row(tape_, TapeRow::kFfn);
  hooks_.before_forward(call(Module::kFfn, index));
  layer.gate = product(call(Module::kGate, index), sizes_.ffn);
  silu_forward(index, layer, saves);
  layer.up = product(call(Module::kUp, index), sizes_.ffn);
  layer.product = tape_.make(sizes_.ffn);
  if (!saves) {
    tape_.free(layer.silu, layer.up, layer.gate);
  }
  const TapeTensor down = product(call(Module::kDown, index), sizes_.sequence);
  if (!saves) {
    tape_.free(layer.product);
  }
  hooks_.after_forward(call(Module::kFfn, index));
  return down;
}

// The caller holds the layer's input until it has returned, unless it is taken.
TapeTensor EagerLlama::layer_forward(std::int64_t index, LlamaLayer& layer, TapeTensor& input,
                                     bool saves) {
  const InRow row(tape_, TapeRow::kResidual);
  hooks_.before_forward(call(Module::kLayer, index));
  norm_forward(call(Module::kAttentionNorm, index), layer.norm, input, saves);
  TapeTensor projected = attention_forward(index, layer, saves);
  if (!saves) {
    tape_.free(layer.norm.output);
  }
  TapeTensor after_attention = tape_.make(sizes_.sequence);
  tape_.free(projected);
  norm_forward(call(Module::kFfnNorm, index), layer.ffn_norm, after_attention, saves);
  TapeTensor down = ffn_forward(index, layer, saves);
  if (!saves) {
    tape_.free(layer.ffn_norm.output);
  }
  const TapeTensor output = tape_.make(sizes_.sequence);
  tape_.free(down, after_attention);
  hooks_.after_forward(call(Module::kLayer, index));
  return output;
}

TapeTensor EagerLlama::head_product() {
  const InRow row(tape_, TapeRow::kLogits);
  return product(call(Module::kHead), sizes_.logits);
}

void EagerLlama::head_forward(TapeTensor& hidden) {
  const InRow row(tape_, TapeRow::kWideLogits);
  tape_.begin(MomentKind::kLossForward);
  norm_forward(call(Module::kFinalNorm), final_norm_, hidden, true);
  tape_.free(hidden);
  hooks_.after_forward(call(Module::kModel));
  loss_forward();
}

// ForCausalLMLoss: logits in fp32, labels shifted by padding.
void EagerLlama::loss_forward() {
  TapeTensor logits = head_product();
  TapeTensor wide = tape_.make(kWiden * sizes_.logits);
  TapeTensor padded = tape_.make_as(TapeRow::kTokens, sizes_.token_ids);
  labels_ = tape_.make_as(TapeRow::kTokens, sizes_.token_ids);
  log_softmax_ = tape_.make(kWiden * sizes_.logits);
  tape_.free(padded, wide);
  hooks_.after_forward(call(Module::kCausalLm));
  tape_.free(logits);
}

void EagerLlama::forward() {
  const InRow row(tape_, TapeRow::kTokens);
  tape_.begin(MomentKind::kForward);
  tape_.enter_thread(false);
  layers_.assign(static_cast<std::size_t>(sizes_.num_layers), {});
  token_ids_ = tape_.make(sizes_.token_ids);
  TapeTensor mask = tape_.make(sizes_.token_ids);
  hooks_.before_forward(call(Module::kCausalLm));
  hooks_.before_forward(call(Module::kModel));
  hooks_.before_forward(call(Module::kEmbedding));
  TapeTensor hidden = tape_.make_as(TapeRow::kResidual, sizes_.sequence);
  hooks_.after_forward(call(Module::kEmbedding));
  rotary();
  for (std::int64_t i = 0; i < sizes_.num_layers; ++i) {
    LlamaLayer& layer = layers_[static_cast<std::size_t>(i)];
    TapeTensor output = layer_forward(i, layer, hidden, !checkpoints_);
    if (checkpoints_) {
      layer.input = std::exchange(hidden, output);
    } else {
      tape_.free(hidden);
      hidden = output;
    }
  }
  head_forward(hidden);
  tape_.free(mask);
}

std::int64_t EagerLlama::parameter_bytes(const ModuleCall& call) const {
  return sizes_.parameters[static_cast<std::size_t>(call.parameter)];
}

TapeTensor EagerLlama::weight_gradient(const ModuleCall& linear) {
  const InRow row(tape_, TapeRow::kWeightGradients);
  return tape_.make_product(parameter_bytes(linear));
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
  TapeTensor of_normed = tape_.make_as(TapeRow::kNormGradients, input);
  TapeTensor products = tape_.make_as(TapeRow::kNormGradients, input);
  const TapeTensor of_weight = tape_.make_as(TapeRow::kWeightGradients, parameter_bytes(norm));
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
  const TapeTensor gradient = tape_.make_as(TapeRow::kNormGradients, input);
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
  TapeTensor sums = tape_.make_as(TapeRow::kWideAttentionGradients, sizes_.log_sum_exp);
  TapeTensor accumulator = tape_.make_as(TapeRow::kWideAttentionGradients, kWiden * sizes_.query);
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
  TapeTensor of_table = tape_.make_as(TapeRow::kWeightGradients, parameter_bytes(embedding));
  TapeTensor workspace = tape_.make_as(TapeRow::kTableWorkspace, sizes_.table_workspace);
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

}  // namespace shardplan
