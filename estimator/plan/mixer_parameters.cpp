// Sources, read in huggingface/transformers (src/transformers/models/<family>/
// modeling_<family>.py), version 5.17 where no other is named, and Megatron-LM core_v0.16.1:
//   qwen2, qwen2_moe  bias on q, k and v, none on the output
//   llama, qwen3      attention_bias puts a bias on all four projections; qwen3, gemma3: RMSNorm of
//                     head_dim on q and on k
//   deepseek_v2, _v3  attention_bias: q_down (only with q-LoRA), kv_down and output; the up
//                     projections and the plain query projection have none
//   olmo2, minimax_m2 norms over all heads; gpt_oss: sinks; qwen3_next: a query projection twice as
//                     wide, whose other half is the gate; step3p5: a gate of one number a head
//   deepseek_v32      the indexer: queries from the compressed queries, one key head with a
//                     LayerNorm, a weight a head; minimax_m3: queries from the hidden states, two
//                     RMSNorms, no weights
//   qwen3_next        in_proj_qkvz and in_proj_ba, one convolution without bias (qwen3_5 and
//                     olmo_hybrid have the same in more matrices); kimi_linear: low-rank
//                     projections of decay and gate; minimax: lightning attention
//   bamba, jamba      Mamba-2 and Mamba; lfm2: short convolutions
// Letters: h hidden, a and k query and kv heads, d head dimension.
#include "estimator/plan/mixer_parameters.h"

namespace shardplan {
namespace {

using Tensors = ParameterTensors;

void add_output(Tensors& tensors, const ModelSpec& model, std::int64_t width) {
  add_linear(tensors, "attention.output", width * model.hidden, Sharding::kTp);
  if (model.attention_output_bias) {
    add_tensor(tensors, "attention.output_bias", model.hidden, Sharding::kReplicated);
  }
}

// Elements of key and value heads that the layer makes, for one input channel.
std::int64_t key_value_width(const AttentionHeads& heads, KeyValueSource source) {
  switch (source) {
    case KeyValueSource::kOwn: return heads.num_kv_heads * (heads.qk_head_dim + heads.v_head_dim);
    case KeyValueSource::kKeysAreValues: return heads.num_kv_heads * heads.qk_head_dim;
    case KeyValueSource::kEarlierLayer: return 0;
  }
  return 0;
}

void add_head_norms(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const AttentionHeads heads = model.heads_of(layer);
  const auto add = [&](const std::string& name, std::int64_t num_heads) {
    const std::int64_t width = (model.norms_all_heads ? num_heads : 1) * heads.qk_head_dim;
    if (model.qk_norm_bias) {
      return add_norm(tensors, model, name, width);
    }
    add_tensor(tensors, name, width, Sharding::kReplicated);
  };
  add("attention.q_norm", heads.num_heads);
  if (layer.key_values != KeyValueSource::kEarlierLayer) {
    add("attention.k_norm", heads.num_kv_heads);
  }
}

// GQA: 2*h*a*d + 2*h*k*d; biases a*d + 2*k*d; q and k norm d each. A gate of every element is as
// wide as the queries.
void add_gqa(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t h = model.hidden;
  const AttentionHeads heads = model.heads_of(layer);
  const std::int64_t gates = model.attention_gate == AttentionGate::kPerElement ? 2 : 1;
  const std::int64_t query = gates * heads.num_heads * heads.qk_head_dim;
  const std::int64_t key_value = key_value_width(heads, layer.key_values);
  tensors.push_back({.name = "attention.qkv",
                     .elements = h * (query + key_value),
                     .sharding = Sharding::kTp,
                     .kv_elements = h * key_value,
                     .is_linear = true});
  if (model.qkv_bias) {
    tensors.push_back({.name = "attention.qkv_bias",
                       .elements = query + key_value,
                       .sharding = Sharding::kTp,
                       .kv_elements = key_value});
  }
  if (model.qk_norm) {
    add_head_norms(tensors, model, layer);
  }
  if (model.attention_gate == AttentionGate::kPerHead) {
    add_linear(tensors, "attention.gate", heads.num_heads * h, Sharding::kTp);
  }
  if (layer.has_sinks) {
    add_tensor(tensors, "attention.sinks", heads.num_heads, Sharding::kTp);
  }
  add_output(tensors, model, heads.num_heads * heads.v_head_dim);
}

// Down-projections and their norms are replicated (Megatron-LM gpt_layer_specs.py: TELinear,
// "duplicated"), up-projections and output divided by tp.
void add_mla(Tensors& tensors, const ModelSpec& model) {
  const MlaSpec& mla = model.mla;
  const std::int64_t h = model.hidden;
  const std::int64_t a = model.num_heads;
  const std::int64_t query = a * mla.qk_head_dim();
  const std::int64_t kv_down = mla.kv_lora_rank + mla.qk_rope_head_dim;
  if (mla.q_lora_rank == 0) {
    add_linear(tensors, "attention.q", h * query, Sharding::kTp);
  } else {
    add_linear(tensors, "attention.q_down", h * mla.q_lora_rank, Sharding::kReplicated);
    if (model.qkv_bias) {
      add_tensor(tensors, "attention.q_down_bias", mla.q_lora_rank, Sharding::kReplicated);
    }
    add_norm(tensors, model, "attention.q_down_norm", mla.q_lora_rank);
    add_linear(tensors, "attention.q_up", mla.q_lora_rank * query, Sharding::kTp);
  }
  add_linear(tensors, "attention.kv_down", h * kv_down, Sharding::kReplicated);
  if (model.qkv_bias) {
    add_tensor(tensors, "attention.kv_down_bias", kv_down, Sharding::kReplicated);
  }
  add_norm(tensors, model, "attention.kv_down_norm", mla.kv_lora_rank);
  add_linear(tensors, "attention.kv_up",
             mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim), Sharding::kTp);
  add_output(tensors, model, a * mla.v_head_dim);
}

// DeepseekV4Attention: queries through a low rank; outputs of each group of heads through another,
// and these together to the hidden width.
void add_shared_key(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const SharedKeySpec& shared = model.shared_key;
  const std::int64_t h = model.hidden;
  const std::int64_t d = model.head_dim;
  const std::int64_t query = model.num_heads * d;
  add_linear(tensors, "attention.q_down", h * shared.q_lora_rank, Sharding::kReplicated);
  add_norm(tensors, model, "attention.q_down_norm", shared.q_lora_rank);
  add_linear(tensors, "attention.q_up", shared.q_lora_rank * query, Sharding::kTp);
  add_linear(tensors, "attention.kv", h * d, Sharding::kReplicated);
  add_norm(tensors, model, "attention.kv_norm", d);
  if (layer.has_sinks) {
    add_tensor(tensors, "attention.sinks", model.num_heads, Sharding::kTp);
  }
  add_linear(tensors, "attention.output_down", shared.output_rank * query, Sharding::kTp);
  add_linear(tensors, "attention.output", shared.output_groups * shared.output_rank * h,
             Sharding::kTp);
}

// Products for what is summed up and for its weights, biases by place and a norm; those that an
// indexer chooses from overlap, and are twice as wide.
void add_compressor(Tensors& tensors, const std::string& name, const ModelSpec& model,
                    const LayerSpec& layer, std::int64_t width) {
  const std::int64_t summed = (layer.has_indexer ? 2 : 1) * width;
  add_linear(tensors, name, 2 * model.hidden * summed, Sharding::kReplicated);
  add_tensor(tensors, name + "_positions", layer.compression * summed, Sharding::kReplicated);
  add_norm(tensors, model, name + "_norm", width);
}

void add_compressed_keys(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const IndexerSpec& indexer = model.indexer;
  add_compressor(tensors, "compressor", model, layer, model.head_dim);
  if (layer.has_indexer) {
    add_compressor(tensors, "indexer.compressor", model, layer, indexer.head_dim);
    add_linear(tensors, "indexer.query",
               model.shared_key.q_lora_rank * indexer.num_heads * indexer.head_dim,
               Sharding::kReplicated);
    add_linear(tensors, "indexer.weights", model.hidden * indexer.num_heads, Sharding::kReplicated);
  }
}

// Under latent attention queries come from the compressed queries and heads have weights.
void add_indexer(Tensors& tensors, const ModelSpec& model) {
  const IndexerSpec& indexer = model.indexer;
  const std::int64_t h = model.hidden;
  const std::int64_t query_input = model.is_mla() ? model.mla.q_lora_rank : h;
  add_linear(tensors, "indexer.query", query_input * indexer.num_heads * indexer.head_dim,
             Sharding::kReplicated);
  add_linear(tensors, "indexer.key", h * indexer.head_dim, Sharding::kReplicated);
  add_tensor(tensors, "indexer.norms", 2 * indexer.head_dim, Sharding::kReplicated);
  if (model.is_mla()) {
    add_linear(tensors, "indexer.weights", h * indexer.num_heads, Sharding::kReplicated);
  }
}

// Projections of queries, keys, values and gate, of decay and step; the convolution over the first
// three.
void add_gated_delta(Tensors& tensors, const ModelSpec& model) {
  const DeltaSpec& delta = model.delta;
  const std::int64_t h = model.hidden;
  const std::int64_t mixed = 2 * delta.key_width() + delta.value_width();
  add_linear(tensors, "delta.input", h * (mixed + delta.value_width() + 2 * delta.value_heads),
             Sharding::kTp);
  add_tensor(tensors, "delta.convolution", mixed * delta.convolution, Sharding::kTp);
  add_tensor(tensors, "delta.step_bias", delta.value_heads, Sharding::kTp);
  add_tensor(tensors, "delta.decay", delta.value_heads, Sharding::kTp);
  add_tensor(tensors, "delta.norm", delta.value_head_dim, Sharding::kReplicated);
  add_linear(tensors, "delta.output", delta.value_width() * h, Sharding::kTp);
}

// Projections of decay and gate go through as many channels as a head has.
void add_kimi_delta(Tensors& tensors, const ModelSpec& model) {
  const DeltaSpec& delta = model.delta;
  const std::int64_t h = model.hidden;
  const std::int64_t mixed = 2 * delta.key_width() + delta.value_width();
  const std::int64_t rank = delta.value_head_dim;
  add_linear(tensors, "delta.input", h * (mixed + delta.value_heads), Sharding::kTp);
  add_tensor(tensors, "delta.convolution", mixed * delta.convolution, Sharding::kTp);
  add_linear(tensors, "delta.down", 2 * h * rank, Sharding::kReplicated);
  add_linear(tensors, "delta.up", rank * (delta.key_width() + delta.value_width()), Sharding::kTp);
  add_tensor(tensors, "delta.step_bias", delta.key_width(), Sharding::kTp);
  add_tensor(tensors, "delta.decay", delta.key_heads, Sharding::kTp);
  add_tensor(tensors, "delta.norm", delta.value_head_dim, Sharding::kReplicated);
  add_linear(tensors, "delta.output", delta.value_width() * h, Sharding::kTp);
}

void add_lightning(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const AttentionHeads heads = model.heads_of(layer);
  const std::int64_t width = heads.num_heads * heads.qk_head_dim;
  add_linear(tensors, "lightning.qkv", 3 * model.hidden * width, Sharding::kTp);
  add_linear(tensors, "lightning.gate", model.hidden * width, Sharding::kTp);
  add_tensor(tensors, "lightning.norm", width, Sharding::kReplicated);
  add_linear(tensors, "lightning.output", width * model.hidden, Sharding::kTp);
}

void add_mamba2(Tensors& tensors, const ModelSpec& model) {
  const MambaSpec& mamba = model.mamba;
  const std::int64_t h = model.hidden;
  const std::int64_t convolved = mamba.inner + 2 * mamba.groups * mamba.state;
  const std::int64_t projected = mamba.inner + convolved + mamba.num_heads;
  add_linear(tensors, "mamba.input", h * projected, Sharding::kTp);
  add_tensor(tensors, "mamba.convolution",
             convolved * (mamba.convolution + (mamba.convolution_bias ? 1 : 0)), Sharding::kTp);
  add_tensor(tensors, "mamba.heads", 3 * mamba.num_heads, Sharding::kTp);  // dt_bias, A_log, D
  if (mamba.gated_norm) {
    add_tensor(tensors, "mamba.norm", mamba.inner, Sharding::kTp);
  }
  add_linear(tensors, "mamba.output", mamba.inner * h, Sharding::kTp);
  if (mamba.projection_bias) {
    add_tensor(tensors, "mamba.input_bias", projected, Sharding::kTp);
    add_tensor(tensors, "mamba.output_bias", h, Sharding::kReplicated);
  }
}

void add_mamba1(Tensors& tensors, const ModelSpec& model) {
  const MambaSpec& mamba = model.mamba;
  const std::int64_t h = model.hidden;
  const std::int64_t selected = mamba.step_rank + 2 * mamba.state;
  add_linear(tensors, "mamba.input", 2 * h * mamba.inner, Sharding::kTp);
  add_tensor(tensors, "mamba.convolution",
             mamba.inner * (mamba.convolution + (mamba.convolution_bias ? 1 : 0)), Sharding::kTp);
  add_linear(tensors, "mamba.selection", mamba.inner * selected, Sharding::kTp);
  add_linear(tensors, "mamba.steps", mamba.step_rank * mamba.inner, Sharding::kTp);
  add_tensor(tensors, "mamba.step_bias", mamba.inner, Sharding::kTp);
  add_tensor(tensors, "mamba.decay", mamba.inner * mamba.state, Sharding::kTp);
  add_tensor(tensors, "mamba.skip", mamba.inner, Sharding::kTp);
  if (mamba.inner_norms) {
    add_tensor(tensors, "mamba.norms", selected, Sharding::kReplicated);
  }
  add_linear(tensors, "mamba.output", mamba.inner * h, Sharding::kTp);
  if (mamba.projection_bias) {
    add_tensor(tensors, "mamba.input_bias", 2 * mamba.inner, Sharding::kTp);
    add_tensor(tensors, "mamba.output_bias", h, Sharding::kReplicated);
  }
}

void add_short_convolution(Tensors& tensors, const ModelSpec& model) {
  const ShortConvolutionSpec& convolution = model.short_convolution;
  const std::int64_t h = model.hidden;
  const std::int64_t biases = convolution.has_bias ? 1 : 0;
  add_linear(tensors, "convolution.input", 3 * h * h, Sharding::kTp);
  add_tensor(tensors, "convolution.weight", h * (convolution.tokens + biases), Sharding::kTp);
  add_linear(tensors, "convolution.output", h * h, Sharding::kTp);
  if (convolution.has_bias) {
    add_tensor(tensors, "convolution.input_bias", 3 * h, Sharding::kTp);
    add_tensor(tensors, "convolution.output_bias", h, Sharding::kReplicated);
  }
}

void add_attention(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  switch (model.attention) {
    case AttentionKind::kGqa: add_gqa(tensors, model, layer); break;
    case AttentionKind::kMla: add_mla(tensors, model); break;
    case AttentionKind::kSharedKey:
      add_shared_key(tensors, model, layer);
      if (layer.compression > 0) {
        add_compressed_keys(tensors, model, layer);
      }
      return;
  }
  if (layer.has_indexer) {
    add_indexer(tensors, model);
  }
}

}  // namespace

void add_mixer(ParameterTensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  switch (layer.mixer) {
    case MixerKind::kAttention: add_attention(tensors, model, layer); break;
    case MixerKind::kGatedDelta: add_gated_delta(tensors, model); break;
    case MixerKind::kKimiDelta: add_kimi_delta(tensors, model); break;
    case MixerKind::kLightning: add_lightning(tensors, model, layer); break;
    case MixerKind::kMamba1: add_mamba1(tensors, model); break;
    case MixerKind::kMamba2: add_mamba2(tensors, model); break;
    case MixerKind::kShortConvolution: add_short_convolution(tensors, model); break;
    case MixerKind::kNone: break;
  }
  if (layer.has_mamba_beside) {
    add_mamba2(tensors, model);
  }
}

}  // namespace shardplan
