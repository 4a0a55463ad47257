// The linear layers of a layer, by family.
#include "estimator/frameworks/pieces/huggingface/layer_weights.h"

#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"

namespace shardplan::huggingface {

// Of attention that makes its gate, too.
std::int64_t query_width(const ModelSpec& model) {
  const bool makes_gate =
      model.attention_gate == AttentionGate::kPerElement && !class_of(model).gates_apart;
  return (makes_gate ? 2 : 1) * model.num_heads * model.qk_head_dim();
}

bool has_own_attention(const LayerSpec& layer) {
  return layer.heads != AttentionHeads{} || layer.key_values != KeyValueSource::kOwn;
}

std::int64_t mamba_channels(const MambaSpec& mamba) {
  return mamba.inner + 2 * mamba.groups * mamba.state;
}

namespace {

// Of layers whose heads differ from the model's, or that read keys of others.
void add_own_attention(LinearWeights& weights, const ModelSpec& model, const LayerSpec& layer) {
  using enum LinearLayer;
  const AttentionHeads heads = model.heads_of(layer);
  const std::int64_t query = heads.num_heads * heads.qk_head_dim;
  const std::int64_t key = heads.num_kv_heads * heads.qk_head_dim;
  weights.add({kQuery, model.hidden, query});
  if (layer.key_values != KeyValueSource::kEarlierLayer) {
    weights.add({kKey, model.hidden, key});
  }
  if (layer.key_values == KeyValueSource::kOwn) {
    weights.add({kValue, model.hidden, key});
  }
  weights.add({kOutput, query, model.hidden});
}

void add_attention(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const std::int64_t query = query_width(model);
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  if (model.is_mla()) {
    const MlaSpec& mla = model.mla;
    if (mla.q_lora_rank == 0) {
      weights.add({kQuery, model.hidden, query});
    } else {
      weights.add({kKey, model.hidden, mla.q_lora_rank});
      weights.add({kKey, mla.q_lora_rank, query});
    }
    weights.add({kKey, model.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim});
    weights.add(
        {kKey, mla.kv_lora_rank, model.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)});
  } else if (class_of(model).has_one_qkv) {
    weights.add({kQuery, model.hidden, query + 2 * key});
  } else {
    weights.add({kQuery, model.hidden, query});
    weights.add({kKey, model.hidden, key});
    weights.add({kValue, model.hidden, key});
  }
  weights.add({kOutput, model.num_heads * model.v_head_dim(), model.hidden});
  if (model.attention_gate == AttentionGate::kPerElement && class_of(model).gates_apart) {
    weights.add({kGate, model.hidden, query});
  }
}

void add_ffn(LinearWeights& weights, const ModelSpec& model, std::int64_t width) {
  using enum LinearLayer;
  if (width == 0) {
    return;
  }
  if (!model.gated_ffn) {
    weights.add({kUp, model.hidden, width});
  } else if (class_of(model).has_one_gate_up) {
    weights.add({kGate, model.hidden, 2 * width});
  } else {
    weights.add({kGate, model.hidden, width});
    weights.add({kUp, model.hidden, width});
  }
  weights.add({kDown, width, model.hidden});
}

void add_delta_net(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const DeltaSpec& delta = model.delta;
  const std::int64_t channels = 2 * delta.key_width() + delta.value_width();
  if (class_of(model).joins_delta_projections) {
    weights.add({kMixerInput, model.hidden, channels + delta.value_width()});
    weights.add({kMixerScalars, model.hidden, 2 * delta.value_heads});
  } else {
    weights.add({kMixerInput, model.hidden, channels});
    weights.add({kMixerGate, model.hidden, delta.value_width()});
    weights.add({kMixerScalars, model.hidden, delta.value_heads});
    weights.add({kMixerScalars, model.hidden, delta.value_heads});
  }
  weights.add({kMixerOutput, delta.value_width(), model.hidden});
}

void add_kimi_delta(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const std::int64_t width = model.delta.value_width();
  const std::int64_t rank = model.delta.value_head_dim;
  for (const LinearLayer place : {kQuery, kMixerInput, kMixerInput}) {
    weights.add({place, model.hidden, width});
  }
  weights.add({kMixerScalars, model.hidden, rank});
  weights.add({kMixerScalars, rank, width});
  weights.add({kMixerScalars, model.hidden, model.delta.value_heads});
  weights.add({kMixerGate, model.hidden, rank});
  weights.add({kMixerGate, rank, width});
  weights.add({kOutput, width, model.hidden});
}

void add_mamba(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const MambaSpec& mamba = model.mamba;
  weights.add({kMixerInput, model.hidden, mamba.inner + mamba_channels(mamba) + mamba.num_heads});
  weights.add({kMixerOutput, mamba.inner, model.hidden});
}

void add_selective(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const MambaSpec& mamba = model.mamba;
  weights.add({kMixerInput, model.hidden, 2 * mamba.inner});
  weights.add({kMixerScalars, mamba.inner, mamba.step_rank + 2 * mamba.state});
  weights.add({kMixerScalars, mamba.step_rank, mamba.inner});
  weights.add({kMixerOutput, mamba.inner, model.hidden});
}

void add_mixer(LinearWeights& weights, const ModelSpec& model, const LayerSpec& layer) {
  using enum LinearLayer;
  switch (layer.mixer) {
    case MixerKind::kAttention:
      has_own_attention(layer) ? add_own_attention(weights, model, layer)
                               : add_attention(weights, model);
      break;
    case MixerKind::kGatedDelta: add_delta_net(weights, model); break;
    case MixerKind::kKimiDelta: add_kimi_delta(weights, model); break;
    case MixerKind::kMamba1: add_selective(weights, model); break;
    case MixerKind::kMamba2: add_mamba(weights, model); break;
    case MixerKind::kShortConvolution:
      weights.add({kMixerInput, model.hidden, 3 * model.hidden});
      weights.add({kMixerOutput, model.hidden, model.hidden});
      break;
    default: break;
  }
  if (layer.has_mamba_beside) {
    add_mamba(weights, model);
  }
}

}  // namespace

LinearWeights linear_weights(const ModelSpec& model, const LayerSpec& layer) {
  LinearWeights weights;
  add_mixer(weights, model, layer);
  if (layer.has_ffn) {
    add_ffn(weights, model,
            layer.is_moe && !model.moe.beside_dense ? model.moe.shared_ffn : model.ffn_of(layer));
  }
  if (model.per_layer_embedding.width > 0) {
    weights.add({LinearLayer::kLatent, model.hidden, model.per_layer_embedding.width});
    weights.add({LinearLayer::kLatent, model.per_layer_embedding.width, model.hidden});
  }
  if (layer.is_moe && model.moe.shared_gate) {
    weights.add({LinearLayer::kSharedGate, model.hidden, 1});
  }
  if (layer.is_moe && model.moe.latent > 0) {
    weights.add({LinearLayer::kLatent, model.hidden, model.moe.latent});
    weights.add({LinearLayer::kLatent, model.moe.latent, model.hidden});
  }
  return weights;
}

}  // namespace shardplan::huggingface
