// The weights of a model, in the order in which its modules have them.
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::huggingface {

using eager::Parameter;

void CausalLm::build_linear(Linear& linear, LinearLayer place, eager::LinearShape shape,
                            bool has_bias) {
  linear.shape = shape;
  linear.quantized = job_.quantized;
  linear.compute_dtype = compute_ == DType::kBf16 ? job_.profile.quant_compute_dtype : compute_;
  if (linear.quantized.kind == Quantization::kNone) {
    holder_.load(linear.weight, kParametersRow, {shape.outputs, shape.inputs}, weights_,
                 trains_all_);
  } else {
    const DType storage =
        job_.profile.quant_compute_dtype == DType::kFp16 ? DType::kFp16 : DType::kBf16;
    load_quantized(graph_, holder_, linear,
                   job_.profile.float_quant_storage ? std::optional(storage) : std::nullopt);
  }
  if (has_bias) {
    holder_.load(linear.bias, kParametersRow, {shape.outputs, 1}, weights_, trains_all_);
  }
  if (has_adapter(job_, place)) {
    linear.rank = job_.adapters.rank;
    linear.dropout = job_.adapters.dropout;
    holder_.load(linear.a, kAdapterRow, {linear.rank, shape.inputs}, job_.adapters.dtype, true);
    holder_.load(linear.b, kAdapterRow, {shape.outputs, linear.rank}, job_.adapters.dtype, true);
    linear.adapter_dtype = holder_.shows_shards() ? linear.a.dtype : linear.a.data.dtype;
    if (job_.adapters.decomposes_weights) {
      holder_.load(linear.magnitude, kAdapterRow, {shape.outputs, 1}, job_.adapters.dtype, true);
    }
  }
}

void CausalLm::build_norm(Norm& norm, std::int64_t width) {
  norm.width = width;
  holder_.load(norm.weight, kParametersRow, {width, 1}, ends_, trains_all_);
  if (job_.model.layer_norm && job_.model.norm_bias) {
    holder_.load(norm.bias, kParametersRow, {width, 1}, ends_, trains_all_);
  }
}

void CausalLm::build_ffn(FeedForward& ffn, std::int64_t width, bool has_bias) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  ffn.activation = job_.model.activation;
  if (!job_.model.gated_ffn) {
    build_linear(ffn.up, kUp, {hidden, width}, has_bias);
  } else if (class_.has_one_gate_up) {
    build_linear(ffn.gate_up, kGate, {hidden, 2 * width}, has_bias);
  } else {
    build_linear(ffn.gate, kGate, {hidden, width}, has_bias);
    build_linear(ffn.up, kUp, {hidden, width}, has_bias);
  }
  build_linear(ffn.down, kDown, {width, hidden}, has_bias);
  if (!job_.model.gated_ffn && ffn.activation == Activation::kXielu) {
    for (Parameter* each : {&ffn.xielu.positive, &ffn.xielu.negative}) {
      holder_.load(*each, kParametersRow, {1, 1}, weights_, trains_all_);
    }
  }
}

void CausalLm::load_experts(Experts& experts, Parameter& weights, eager::LinearShape shape) {
  const std::int64_t elements = shape.inputs * shape.outputs;
  if (!job_.profile.quantizes_experts || job_.quantized.kind == Quantization::kNone) {
    const std::int64_t num_experts = job_.model.moe.num_experts;
    return holder_.load(weights, kParametersRow, {num_experts, elements / num_experts}, weights_,
                        trains_all_);
  }
  const eager::InRow row(graph_.tape, kQuantizedRow);
  for (const std::int64_t bytes : quantized_bytes(job_.quantized, shape)) {
    experts.packed.push_back(graph_.make(bytes, DType::kBool));
  }
  weights.data.elements = elements;
  weights.data.dtype = weights_;
}

void CausalLm::build_experts(Layer& layer) {
  const MoeSpec& moe = job_.model.moe;
  const std::int64_t wide = (job_.model.gated_ffn ? 2 : 1) * moe.expert_ffn;
  Experts& experts = layer.experts;
  const auto load_rows = [&](Parameter& parameter, std::int64_t columns) {
    holder_.load(parameter, kParametersRow, {moe.num_experts, columns}, weights_, trains_all_);
  };
  load_experts(experts, experts.gate_up,
               {.inputs = sizes_.hidden, .outputs = moe.num_experts * wide});
  load_experts(experts, experts.down,
               {.inputs = moe.expert_ffn, .outputs = moe.num_experts * sizes_.hidden});
  load_rows(experts.router, sizes_.hidden);
  if (moe.biased_experts) {
    load_rows(experts.gate_up_bias, wide);
    load_rows(experts.down_bias, sizes_.hidden);
  }
  if (moe.biased_router) {
    load_rows(experts.router_bias, 1);
  }
  if (const ExpertAdapters ranks = expert_adapters(job_); !ranks.are_none()) {
    const auto load = [&](Parameter& parameter, Shape shape) {
      if (shape.elements() > 0) {
        holder_.load(parameter, kAdapterRow, shape, job_.adapters.dtype, true);
      }
    };
    load(experts.gate_up_a, {ranks.gate_up * moe.num_experts, sizes_.hidden});
    load(experts.gate_up_b, {2 * moe.expert_ffn, ranks.gate_up * moe.num_experts});
    load(experts.down_a, {ranks.down * moe.num_experts, moe.expert_ffn});
    load(experts.down_b, {sizes_.hidden, ranks.down * moe.num_experts});
    load(experts.router_a, {ranks.router, sizes_.hidden});
    load(experts.router_b, {moe.num_experts, ranks.router});
  }
  if (moe.shared_ffn > 0) {
    build_ffn(layer.shared_experts, moe.shared_ffn, false);
  }
  if (moe.shared_gate) {
    holder_.load(layer.shared_gate, kParametersRow, {1, sizes_.hidden}, weights_, trains_all_);
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
    build_linear(layer.query, kQuery, {hidden, query}, false);
  } else {
    build_linear(latent.query_down, kKey, {hidden, mla.q_lora_rank}, job_.model.qkv_bias);
    build_norm(latent.query_norm, mla.q_lora_rank);
    build_linear(latent.query_up, kKey, {mla.q_lora_rank, query}, false);
  }
  build_linear(latent.key_value_down, kKey, {hidden, mla.kv_lora_rank + mla.qk_rope_head_dim},
               job_.model.qkv_bias);
  build_norm(latent.key_value_norm, mla.kv_lora_rank);
  build_linear(latent.key_value_up, kKey,
               {mla.kv_lora_rank, sizes_.query_heads * (mla.qk_nope_head_dim + mla.v_head_dim)},
               false);
}

void CausalLm::build_attention(Layer& layer) {
  using enum LinearLayer;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t query = sizes_.query_heads * sizes_.head_dim;
  const std::int64_t key = sizes_.key_heads * sizes_.head_dim;
  const bool has_bias = job_.model.qkv_bias;
  const bool has_gate = job_.model.attention_gate == AttentionGate::kPerElement;
  if (job_.model.is_mla()) {
    build_latent(layer);
  } else if (class_.has_one_qkv) {
    build_linear(layer.query_key_value, kQuery, {hidden, query + 2 * key}, has_bias);
  } else {
    build_linear(layer.query, kQuery, {hidden, (has_gate ? 2 : 1) * query}, has_bias);
    build_linear(layer.key, kKey, {hidden, key}, has_bias);
    build_linear(layer.value, kValue, {hidden, key}, has_bias);
  }
  build_linear(layer.output, kOutput, {sizes_.query_heads * job_.model.v_head_dim(), hidden},
               job_.model.attention_output_bias);
  if (job_.model.qk_norm) {
    const bool is_of_rows = job_.model.norms_all_heads;
    build_norm(layer.query_norm, is_of_rows ? query : sizes_.head_dim);
    build_norm(layer.key_norm, is_of_rows ? key : sizes_.head_dim);
  }
}

void CausalLm::build_plain(Linear& linear, eager::LinearShape shape, bool has_bias) {
  linear.shape = shape;
  linear.compute_dtype = compute_;
  holder_.load(linear.weight, kParametersRow, {shape.outputs, shape.inputs}, weights_, trains_all_);
  if (has_bias) {
    holder_.load(linear.bias, kParametersRow, {shape.outputs, 1}, weights_, trains_all_);
  }
}

void CausalLm::build_convolution(ShortConvolution& mixer) {
  const ShortConvolutionSpec& spec = job_.model.short_convolution;
  const std::int64_t hidden = sizes_.hidden;
  build_plain(mixer.input, {hidden, 3 * hidden}, spec.has_bias);
  holder_.load(mixer.weight, kParametersRow, {hidden, spec.tokens}, weights_, trains_all_);
  if (spec.has_bias) {
    holder_.load(mixer.bias, kParametersRow, {hidden, 1}, weights_, trains_all_);
  }
  build_plain(mixer.output, {hidden, hidden}, spec.has_bias);
}

void CausalLm::build_mamba(Mamba& mixer) {
  const MambaSpec& spec = job_.model.mamba;
  const std::int64_t channels = spec.inner + 2 * spec.groups * spec.state;
  const auto load = [this](Parameter& parameter, std::int64_t rows, std::int64_t columns) {
    holder_.load(parameter, kParametersRow, {rows, columns}, weights_, trains_all_);
  };
  load(mixer.step_bias, spec.num_heads, 1);
  load(mixer.decay_log, spec.num_heads, 1);
  load(mixer.skip, spec.num_heads, 1);
  load(mixer.convolution, channels, spec.convolution);
  if (spec.convolution_bias) {
    load(mixer.convolution_bias, channels, 1);
  }
  build_plain(mixer.input, {sizes_.hidden, spec.inner + channels + spec.num_heads},
              spec.projection_bias);
  mixer.norm.width = spec.inner / spec.groups;
  holder_.load(mixer.norm.weight, kParametersRow, {spec.inner, 1}, ends_, trains_all_);
  build_plain(mixer.output, {spec.inner, sizes_.hidden}, spec.projection_bias);
}

void CausalLm::build_mixer(Layer& layer, const LayerSpec& spec) {
  switch (spec.mixer) {
    case MixerKind::kGatedDelta: return build_delta_net(layer.delta_net);
    case MixerKind::kShortConvolution: return build_convolution(layer.convolution);
    case MixerKind::kMamba2: return build_mamba(layer.mamba);
    case MixerKind::kNone: return;
    default: return build_attention(layer);
  }
}

// Its projections are no targets of adapters by the names of attention's.
void CausalLm::build_delta_net(DeltaNet& net) {
  const DeltaSpec& widths = job_.model.delta;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t channels = 2 * widths.key_width() + widths.value_width();
  const auto load = [this](Parameter& parameter, std::int64_t rows, std::int64_t columns) {
    holder_.load(parameter, kParametersRow, {rows, columns}, weights_, trains_all_);
  };
  const auto build = [this](Linear& linear, eager::LinearShape shape) {
    build_plain(linear, shape, false);
  };
  load(net.step_bias, widths.value_heads, 1);
  load(net.decay_log, widths.value_heads, 1);
  load(net.convolution, channels, widths.convolution);
  if (class_.joins_delta_projections) {
    build(net.joint, {hidden, channels + widths.value_width()});
    build(net.joint_scalars, {hidden, 2 * widths.value_heads});
  } else {
    build(net.queries_keys_values, {hidden, channels});
    build(net.gates, {hidden, widths.value_width()});
    build(net.rates, {hidden, widths.value_heads});
    build(net.decays, {hidden, widths.value_heads});
  }
  build_norm(net.norm, widths.value_head_dim);
  build(net.output, {widths.value_width(), hidden});
}

void CausalLm::build_layer(Layer& layer, std::size_t place) {
  build_mixer(layer, job_.model.layers[place]);
  if (job_.model.layers[place].has_sinks) {
    holder_.load(layer.sinks, kParametersRow, {sizes_.query_heads, 1}, weights_, trains_all_);
  }
  if (job_.model.layers[place].is_moe) {
    build_experts(layer);
  } else if (job_.model.layers[place].has_ffn) {
    build_ffn(layer.ffn, job_.model.ffn, job_.model.ffn_bias);
  }
  const auto build_pair = [this](Norm& of_attention, Norm& of_ffn) {
    build_norm(of_attention, sizes_.hidden);
    build_norm(of_ffn, sizes_.hidden);
  };
  if (job_.model.norms_per_layer == 1) {
    return build_norm(layer.attention_norm, sizes_.hidden);
  }
  if (!job_.model.norms_after) {
    build_pair(layer.attention_norm, layer.ffn_norm);
  }
  if (job_.model.norms_after || job_.model.norms_per_layer > 2) {
    build_pair(layer.after_attention, layer.after_ffn);
  }
}

// The embedding or the head; peft's ModulesToSaveWrapper trains a copy beside it.
void CausalLm::load_end(eager::Parameter& table, bool has_copy) {
  const Shape shape = {sizes_.vocab, sizes_.hidden};
  table.is_end = true;
  if (!has_copy) {
    return holder_.load(table, kParametersRow, shape, ends_, trains_all_);
  }
  holder_.load(originals_.emplace_back(), kParametersRow, shape, ends_, false);
  holder_.load(table, kAdapterRow, shape, job_.adapters.copies_dtype, true);
}

void CausalLm::build() {
  using enum ModuleGroup::Kind;
  holder_.begin_group({kEmbedding});
  table_.is_embedding = true;
  load_end(table_, job_.adapters.trains_table);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    holder_.begin_group({kLayer, static_cast<std::int64_t>(i)});
    build_layer(layers_[i], i);
  }
  holder_.begin_group({kFinalNorm});
  build_norm(final_norm_, sizes_.hidden);
  if (!job_.model.tied_embeddings) {
    holder_.begin_group({kHead});
    load_end(head_, job_.adapters.trains_head);
  }
}

std::vector<eager::Parameter*> CausalLm::trained() {
  std::vector<eager::Parameter*> found;
  const auto take = [&found](eager::Parameter& parameter) {
    if (parameter.is_trained) {
      found.push_back(&parameter);
    }
  };
  const auto take_linear = [&take](Linear& linear) {
    for (eager::Parameter* each :
         {&linear.weight, &linear.bias, &linear.a, &linear.b, &linear.magnitude}) {
      take(*each);
    }
  };
  const auto take_ffn = [&](FeedForward& ffn) {
    for (Linear* each : {&ffn.gate_up, &ffn.gate, &ffn.up, &ffn.down}) { take_linear(*each); }
    take(ffn.xielu.positive);
    take(ffn.xielu.negative);
  };
  const auto take_norm = [&take](Norm& norm) {
    take(norm.weight);
    take(norm.bias);
  };
  take(table_);
  for (Layer& layer : layers_) {
    LatentProjections& latent = layer.latent;
    DeltaNet& net = layer.delta_net;
    for (Parameter* each : {&net.step_bias, &net.decay_log, &net.convolution}) { take(*each); }
    for (Linear* each : {&net.joint, &net.joint_scalars, &net.queries_keys_values, &net.gates,
                         &net.rates, &net.decays, &net.output}) {
      take_linear(*each);
    }
    take_norm(net.norm);
    Mamba& mamba = layer.mamba;
    for (Parameter* each : {&mamba.step_bias, &mamba.decay_log, &mamba.skip, &mamba.convolution,
                            &mamba.convolution_bias}) {
      take(*each);
    }
    take_norm(mamba.norm);
    for (Linear* each :
         {&layer.convolution.input, &layer.convolution.output, &mamba.input, &mamba.output}) {
      take_linear(*each);
    }
    take(layer.convolution.weight);
    take(layer.convolution.bias);
    for (Linear* each :
         {&layer.query, &latent.query_down, &latent.query_up, &latent.key_value_down,
          &latent.key_value_up, &layer.key, &layer.value, &layer.output, &layer.query_key_value}) {
      take_linear(*each);
    }
    for (Norm* each :
         {&layer.query_norm, &layer.key_norm, &latent.query_norm, &latent.key_value_norm}) {
      take_norm(*each);
    }
    take_ffn(layer.ffn);
    Experts& experts = layer.experts;
    take(layer.sinks);
    for (Parameter* each :
         {&experts.gate_up, &experts.gate_up_bias, &experts.down, &experts.down_bias,
          &experts.router, &experts.router_bias, &experts.gate_up_a, &experts.gate_up_b,
          &experts.down_a, &experts.down_b, &experts.router_a, &experts.router_b}) {
      take(*each);
    }
    take_ffn(layer.shared_experts);
    take(layer.shared_gate);
    for (Norm* each :
         {&layer.attention_norm, &layer.ffn_norm, &layer.after_attention, &layer.after_ffn}) {
      take_norm(*each);
    }
  }
  take_norm(final_norm_);
  take(head_);
  return found;
}

}  // namespace shardplan::huggingface
