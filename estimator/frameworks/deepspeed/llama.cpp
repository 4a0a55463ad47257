#include "estimator/frameworks/deepspeed/llama.h"

#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/pieces/table_gradient.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::deepspeed {
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
  const TapeTensor output = make_product(tape_, bytes);
  hooks_.after_forward(linear);
  return output;
}

// LlamaRotaryEmbedding: its fp32 product is the first that the forward's thread runs.
void EagerLlama::rotary() {
  const InRow row(tape_, TapeRow::kRotary);
  hooks_.before_forward(call(Module::kRotary));
  TapeTensor angles = make_product(tape_, sizes_.rotary_angles / 2);
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
  tensors.normed = make_as(tape_, TapeRow::kNorm, input);
  tensors.output = make_as(tape_, TapeRow::kNorm, input);
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
  layer.log_sum_exp = make_as(tape_, TapeRow::kAttentionSums, sizes_.log_sum_exp);
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
  TapeTensor padded = make_as(tape_, TapeRow::kTokens, sizes_.token_ids);
  labels_ = make_as(tape_, TapeRow::kTokens, sizes_.token_ids);
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
  TapeTensor hidden = make_as(tape_, TapeRow::kResidual, sizes_.sequence);
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

}  // namespace shardplan::deepspeed
