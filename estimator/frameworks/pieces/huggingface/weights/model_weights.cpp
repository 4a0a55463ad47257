// The weights of a model, in the order in which its modules have them.
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::huggingface {

using eager::Parameter;

namespace {

// base_model_tp_plan of Llama and its kin (transformers 5.17 models/llama/configuration_llama.py).
Division division_of(LinearLayer place) {
  return place == LinearLayer::kOutput || place == LinearLayer::kDown ? Division::kInputs
                                                                      : Division::kOutputs;
}

}  // namespace

// The model's prefix, the layer, the module that is being built, and the name within it.
std::string CausalLm::full_name(const Name& name) const {
  std::string full(class_path_);
  if (layer_ >= 0) {
    full.append("layers.").append(std::to_string(layer_)).append(".");
  }
  return full.append(module_).append(name.module).append(name.leaf);
}

bool CausalLm::trains(const Name& name, const Shape& shape) {
  const bool is_asked =
      trains_all_ && (!builds_tower_ || job_.profile.vision_tower == TowerUse::kTrained);
  if (named_ == nullptr && (filter_.is_empty() || !is_asked)) {
    return is_asked;
  }
  const std::string full = full_name(name);
  const bool is_trained = is_asked && filter_.trains(full);
  if (named_ != nullptr) {
    named_->push_back({.name = full, .elements = shape.elements(), .is_trained = is_trained});
  }
  return is_trained;
}

void CausalLm::load(Parameter& parameter, const Name& name, const Shape& shape, DType dtype) {
  const bool is_trained = trains(name, shape);
  const bool is_narrow = !is_trained && trains_all_ && job_.profile.narrow_frozen;
  is_layer_trained_ = is_layer_trained_ || is_trained;
  parameter.is_bias = name.leaf.find("bias") != std::string_view::npos;
  parameter.is_query_or_key = name.module == "q_proj" || name.module == "k_proj";
  holder_.load(parameter, builds_tower_ ? kTowerRow : kParametersRow, shape,
               is_narrow ? compute_ : dtype, is_trained);
}

void CausalLm::build_linear(Linear& linear, LinearLayer place, std::string_view name,
                            eager::LinearShape shape, bool has_bias) {
  linear.shape = shape;
  linear.division = sizes_.tp > 1 ? division_of(place) : Division::kNone;
  linear.divided = divided_;
  linear.shape.is_function = !class_.multiplies_itself;
  linear.compute_dtype = compute_ == DType::kBf16 ? job_.profile.quant_compute_dtype : compute_;
  if (job_.profile.fake_quantization != FakeQuantization::kNone) {
    linear.fake_group = job_.profile.fake_quantization_group;
  }
  if (job_.quantized.is_on(place)) {
    load_packed(linear);
  } else {
    load(linear.weight, {name, ".weight"}, {shape.outputs, shape.inputs}, weights_);
  }
  if (has_bias) {
    load(linear.bias, {name, ".bias"}, {shape.outputs, 1}, weights_);
  }
  if (has_adapter(job_, place)) {
    build_adapter(linear);
    for (Parameter* each : {&linear.a, &linear.b}) {
      each->is_query_or_key = name == "q_proj" || name == "k_proj";
    }
  }
}

void CausalLm::build_adapter(Linear& linear) {
  const eager::LinearShape& shape = linear.shape;
  linear.is_off = &adapters_are_off_;
  if (job_.adapters.kind == AdapterKind::kOft) {
    linear.block = rotated_together(shape.inputs, job_.adapters.rank);
    const std::int64_t above_diagonal = linear.block * (linear.block - 1) / 2;
    holder_.load(linear.rotation, kAdapterRow, {shape.inputs / linear.block, above_diagonal},
                 job_.adapters.dtype, true);
    linear.adapter_dtype = linear.rotation.data.dtype;
    const eager::InRow row(graph_.tape, kAdapterRow);
    for (int i = 0; i < 2; ++i) {
      linear.block_indices.push_back(graph_.make(above_diagonal, DType::kInt64));
    }
  } else {
    linear.rank = job_.adapters.rank;
    linear.dropout = job_.adapters.dropout;
    holder_.load(linear.a, kAdapterRow, {linear.rank, shape.inputs}, job_.adapters.dtype, true);
    holder_.load(linear.b, kAdapterRow, {shape.outputs, linear.rank}, job_.adapters.dtype, true);
    linear.adapter_dtype = holder_.shows_shards() ? linear.a.dtype : linear.a.data.dtype;
    if (job_.adapters.kind == AdapterKind::kAdaLora) {
      holder_.load(linear.scales, kAdapterRow, {linear.rank, 1}, job_.adapters.dtype, true);
      const eager::InRow row(graph_.tape, kAdapterRow);
      linear.rank_number = graph_.make(1, job_.adapters.dtype);
    }
    if (job_.adapters.decomposes_weights) {
      holder_.load(linear.magnitude, kAdapterRow, {shape.outputs, 1}, job_.adapters.dtype, true);
    }
  }
}

// axolotl's FSDP2, which knows quantized experts, shards bytes as well.
std::optional<DType> CausalLm::stored_type(DType floats) const {
  if (job_.profile.float_quant_storage && is_4bit(job_.quantized.kind)) {
    return floats;
  }
  return job_.profile.quantizes_experts ? std::optional(DType::kBool) : std::nullopt;
}

void CausalLm::load_packed(Linear& linear) {
  linear.quantized = job_.quantized;
  const DType floats =
      job_.profile.quant_compute_dtype == DType::kFp16 ? DType::kFp16 : DType::kBf16;
  load_quantized(graph_, holder_, linear, stored_type(floats), kQuantizedRow);
}

void CausalLm::build_norm(Norm& norm, std::string_view name, std::int64_t width) {
  norm.width = width;
  load(norm.weight, {name, ".weight"}, {width, 1}, ends_);
  if (job_.model.layer_norm && job_.model.norm_bias) {
    load(norm.bias, {name, ".bias"}, {width, 1}, ends_);
  }
}

// swift/tuners/adapter.py AdapterModule: two linear layers with biases, in fp32.
void CausalLm::build_bottleneck(FeedForward& ffn) {
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t length = job_.adapters.rank;
  ffn.narrowing.shape = {.inputs = hidden, .outputs = length};
  ffn.widening.shape = {.inputs = length, .outputs = hidden};
  for (Linear* linear : {&ffn.narrowing, &ffn.widening}) {
    const eager::LinearShape& shape = linear->shape;
    holder_.load(linear->weight, kAdapterRow, {shape.outputs, shape.inputs}, job_.adapters.dtype,
                 true);
    holder_.load(linear->bias, kAdapterRow, {shape.outputs, 1}, job_.adapters.dtype, true);
  }
}

void CausalLm::build_ffn(FeedForward& ffn, std::int64_t width, bool has_bias) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  ffn.activation = job_.model.activation;
  ffn.scales_parts = class_.scales_parts;
  if (!job_.model.gated_ffn) {
    build_linear(ffn.up, kUp, "up_proj", {hidden, width}, has_bias);
  } else if (class_.has_one_gate_up) {
    build_linear(ffn.gate_up, kGate, "gate_up_proj", {hidden, 2 * width}, has_bias);
  } else {
    build_linear(ffn.gate, kGate, "gate_proj", {hidden, width}, has_bias);
    build_linear(ffn.up, kUp, "up_proj", {hidden, width}, has_bias);
  }
  build_linear(ffn.down, kDown, "down_proj", {width, hidden}, has_bias);
  if (has_bottleneck(job_, kDown)) {
    build_bottleneck(ffn);
  }
  if (!job_.model.gated_ffn && ffn.activation == Activation::kXielu) {
    load(ffn.xielu.positive, {"act_fn.", "alpha_p"}, {1, 1}, weights_);
    load(ffn.xielu.negative, {"act_fn.", "alpha_n"}, {1, 1}, weights_);
  }
}

// Adapters on all linear layers, and so on keys and values, stand on these projections.
void CausalLm::build_latent(Layer& layer) {
  using enum LinearLayer;
  const MlaSpec& mla = job_.model.mla;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t query = sizes_.query_heads * mla.qk_head_dim();
  LatentProjections& latent = layer.latent;
  if (mla.q_lora_rank == 0) {
    build_linear(layer.query, kQuery, "q_proj", {hidden, query}, false);
  } else {
    build_linear(latent.query_down, kKey, "q_a_proj", {hidden, mla.q_lora_rank},
                 job_.model.qkv_bias);
    build_norm(latent.query_norm, "q_a_layernorm", mla.q_lora_rank);
    build_linear(latent.query_up, kKey, "q_b_proj", {mla.q_lora_rank, query}, false);
  }
  build_linear(latent.key_value_down, kKey, "kv_a_proj_with_mqa",
               {hidden, mla.kv_lora_rank + mla.qk_rope_head_dim}, job_.model.qkv_bias);
  build_norm(latent.key_value_norm, "kv_a_layernorm", mla.kv_lora_rank);
  build_linear(latent.key_value_up, kKey, "kv_b_proj",
               {mla.kv_lora_rank, sizes_.query_heads * (mla.qk_nope_head_dim + mla.v_head_dim)},
               false);
}

void CausalLm::build_attention(Layer& layer) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  const bool has_bias = job_.model.qkv_bias;
  const LayerSpec& spec = job_.model.layers[static_cast<std::size_t>(layer_)];
  const bool has_keys = spec.key_values != KeyValueSource::kEarlierLayer;
  const bool has_own = spec.heads != AttentionHeads{};
  const std::int64_t head_dim = has_own ? spec.heads.qk_head_dim : sizes_.head_dim;
  const std::int64_t heads = has_own ? spec.heads.num_heads : sizes_.query_heads;
  const std::int64_t query = heads * head_dim;
  const std::int64_t key = (has_own ? spec.heads.num_kv_heads : sizes_.key_heads) * head_dim;
  module_ = "self_attn.";
  const bool has_gate = job_.model.attention_gate == AttentionGate::kPerElement;
  if (job_.model.is_mla()) {
    build_latent(layer);
  } else if (class_.has_one_qkv) {
    build_linear(layer.query_key_value, kQuery, "qkv_proj", {hidden, query + 2 * key}, has_bias);
  } else {
    const bool makes_gate = has_gate && !class_.gates_apart;
    build_linear(layer.query, kQuery, "q_proj", {hidden, (makes_gate ? 2 : 1) * query}, has_bias);
    if (has_keys) {
      build_linear(layer.key, kKey, "k_proj", {hidden, key}, has_bias);
    }
    if (spec.key_values == KeyValueSource::kOwn) {
      build_linear(layer.value, kValue, "v_proj", {hidden, key}, has_bias);
    }
  }
  build_linear(layer.output, kOutput, "o_proj",
               {has_own ? query : sizes_.query_heads * job_.model.v_head_dim(), hidden},
               job_.model.attention_output_bias);
  if (job_.model.qk_norm) {
    const bool is_of_rows = job_.model.norms_all_heads;
    build_norm(layer.query_norm, "q_norm", is_of_rows ? query : head_dim);
    if (has_keys) {
      build_norm(layer.key_norm, "k_norm", is_of_rows ? key : head_dim);
    }
  }
  layer.value_norm.width = has_keys && class_.has_value_norm ? head_dim : 0;
  if (class_.attends_in_fp32) {
    const eager::InRow row(graph_.tape, kBuffersRow);
    layer.positions =
        graph_.make(job_.model.max_sequence_length * rotary_width(job_.model), DType::kFp32);
  }
  if (has_gate && class_.gates_apart) {
    build_linear(layer.gate, kGate, "gate_proj", {hidden, query}, false);
  }
}

void CausalLm::build_layer(Layer& layer, std::size_t place) {
  const LayerSpec& spec = job_.model.layers[place];
  layer_ = static_cast<std::int64_t>(place);
  layer.place = layer_;
  is_layer_trained_ = false;
  build_mixer(layer, spec);
  if (spec.has_sinks) {
    load(layer.sinks, {"sinks", ""}, {sizes_.query_heads, 1}, weights_);
    layer.sinks.is_reached = job_.profile.attention_backend != AttentionBackend::kFlash;
  }
  module_ = "mlp.";
  if (spec.is_moe) {
    build_experts(layer);
    module_ = "mlp.";
  }
  if (spec.has_ffn && (!spec.is_moe || job_.model.moe.beside_dense)) {
    build_ffn(layer.ffn, job_.model.ffn_of(spec) / sizes_.tp, job_.model.ffn_bias);
  }
  module_ = "";
  build_norms(layer);
  if (class_.scales_layers) {
    const eager::InRow row(graph_.tape, kBuffersRow);
    layer.scalar = graph_.make(1, weights_);
  }
  if (has_per_layer_inputs()) {
    build_per_layer_input(layer);
  }
  layer.is_trained = is_layer_trained_ || !trains_all_;
  layer_ = -1;
}

void CausalLm::build_norms(Layer& layer) {
  const NormNames names = norm_names(job_.model);
  if (job_.model.norms_per_layer == 1) {
    return build_norm(layer.attention_norm, names.attention, sizes_.hidden);
  }
  if (!job_.model.norms_after) {
    build_norm(layer.attention_norm, names.attention, sizes_.hidden);
    build_norm(layer.ffn_norm, names.ffn, sizes_.hidden);
  }
  if (job_.model.moe.beside_dense && layer.experts.down.data.is_defined()) {
    build_norm(layer.beside_experts, "post_feedforward_layernorm_1", sizes_.hidden);
    build_norm(layer.experts_input, "pre_feedforward_layernorm_2", sizes_.hidden);
    build_norm(layer.after_experts, "post_feedforward_layernorm_2", sizes_.hidden);
  }
  if (job_.model.norms_after || job_.model.norms_per_layer > 2) {
    build_norm(layer.after_attention, names.after_attention, sizes_.hidden);
    build_norm(layer.after_ffn, names.after_ffn, sizes_.hidden);
  }
}

// The embedding or the head; peft's ModulesToSaveWrapper trains a copy beside it.
void CausalLm::load_end(eager::Parameter& table, std::string_view name, std::int64_t rows,
                        bool has_copy) {
  const Shape shape = {rows, sizes_.hidden};
  table.is_end = true;
  if (!has_copy) {
    return load(table, {name, ".weight"}, shape, ends_);
  }
  holder_.load(originals_.emplace_back(), kParametersRow, shape, ends_, false);
  holder_.load(table, kAdapterRow, shape, job_.adapters.copies_dtype, true);
}

void CausalLm::build(std::vector<NamedParameter>* named) {
  using enum ModuleGroup::Kind;
  named_ = named;
  if (job_.profile.vision_tower != TowerUse::kAbsent) {
    build_tower();
    class_path_ = "model.language_model.";
  }
  holder_.begin_group({kEmbedding});
  table_.is_embedding = true;
  load_end(table_, "embed_tokens", sizes_.vocab, job_.adapters.trains_table);
  if (class_.has_learned_positions) {
    load(positions_, {"wpe", ".weight"}, {job_.model.learned_positions, sizes_.hidden}, ends_);
  }
  if (has_per_layer_inputs()) {
    build_per_layer_table();
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    holder_.begin_group({kLayer, static_cast<std::int64_t>(i)});
    build_layer(layers_[i], i);
  }
  holder_.begin_group({kFinalNorm});
  build_norm(final_norm_, "norm", sizes_.hidden);
  for (PredictionModule& module : predictions_) { build_prediction(module); }
  if (has_label_head()) {
    holder_.begin_group({kHead});
    class_path_ = "";
    build_label_head();
  }
  if (!job_.model.tied_embeddings && calls_head()) {
    holder_.begin_group({kHead});
    class_path_ = "";
    build_head();
  }
}

// Its projection has an adapter where all linear layers have one. What is loaded here gets no
// gradient, and is none of trained().
void CausalLm::build_prediction(PredictionModule& module) {
  build_norm(module.embedding_norm, "token_layernorm", sizes_.hidden);
  build_norm(module.hidden_norm, "hidden_layernorm", sizes_.hidden);
  build_norm(module.final_norm, "final_layernorm", sizes_.hidden);
  build_linear(module.projection, LinearLayer::kMixerInput, "input_proj",
               {2 * sizes_.hidden, sizes_.hidden}, false);
  build_layer(module.layer, layers_.size() - 1);
}

// peft trains a copy of `score` (peft_model.py PeftModelForSequenceClassification), and leaves
// alone what TRL's model with a value head has around it, in fp32.
void CausalLm::build_label_head() {
  const std::int64_t rows = job_.profile.num_labels;
  const bool is_value = calls_head();
  label_head_.shape = {.inputs = sizes_.hidden, .outputs = rows};
  const bool has_bias = is_value || job_.profile.objective == Objective::kTokenLabels;
  if (is_value) {
    holder_.load(label_head_.weight, kParametersRow, {rows, sizes_.hidden}, DType::kFp32, true);
  } else {
    load_end(label_head_.weight, "score", rows, !trains_all_);
  }
  if (has_bias && (is_value || !trains_all_)) {
    const DType dtype = is_value ? DType::kFp32 : job_.adapters.copies_dtype;
    holder_.load(label_head_.bias, kParametersRow, {rows, 1}, dtype, true);
  } else if (has_bias) {
    load(label_head_.bias, {"score", ".bias"}, {rows, 1}, ends_);
  }
}

void CausalLm::build_head() {
  const std::int64_t rows = sizes_.vocab / sizes_.tp;
  head_.shape = {.inputs = sizes_.hidden, .outputs = rows};
  head_.compute_dtype = compute_ == DType::kBf16 ? job_.profile.quant_compute_dtype : compute_;
  if (job_.quantized.takes_head && job_.quantized.kind != Quantization::kNone &&
      !job_.adapters.trains_head) {
    load_packed(head_);
  } else {
    load_end(head_.weight, "lm_head", rows, job_.adapters.trains_head);
  }
  if (job_.model.head_bias && job_.adapters.trains_head) {
    holder_.load(head_.bias, kAdapterRow, {rows, 1}, job_.adapters.copies_dtype, true);
  } else if (job_.model.head_bias) {
    load(head_.bias, {"lm_head", ".bias"}, {rows, 1}, ends_);
  }
}

}  // namespace shardplan::huggingface
