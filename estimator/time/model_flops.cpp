#include "estimator/time/model_flops.h"

#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_work.h"

namespace shardplan {
namespace {

std::int64_t attention_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const MlaSpec& mla = model.mla;
  const std::int64_t h = model.hidden;
  const std::int64_t a = model.num_heads;
  if (!model.is_mla()) {
    const AttentionHeads heads = model.heads_of(layer);
    const bool has_gate = model.attention_gate == AttentionGate::kPerElement;
    const std::int64_t of_keys = layer.key_values == KeyValueSource::kOwn             ? 2
                                 : layer.key_values == KeyValueSource::kKeysAreValues ? 1
                                                                                      : 0;
    return h * ((has_gate ? 3 : 2) * heads.num_heads + of_keys * heads.num_kv_heads) *
           heads.qk_head_dim;
  }
  const std::int64_t query = a * mla.qk_head_dim();
  return (mla.q_lora_rank > 0 ? mla.q_lora_rank * (h + query) : h * query) +
         h * (mla.kv_lora_rank + mla.qk_rope_head_dim) +
         mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim) + a * mla.v_head_dim * h;
}

// Of what mixes tokens.
std::int64_t mixer_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t h = model.hidden;
  const DeltaSpec& delta = model.delta;
  const MambaSpec& mamba = model.mamba;
  switch (layer.mixer) {
    case MixerKind::kGatedDelta:
      return h * (2 * delta.key_width() + 3 * delta.value_width() + 2 * delta.value_heads);
    case MixerKind::kKimiDelta:
      return h * (4 * delta.value_width() + delta.value_heads + 2 * delta.value_head_dim) +
             2 * delta.value_head_dim * delta.value_width();
    case MixerKind::kMamba2:
      return h * (3 * mamba.inner + 2 * mamba.groups * mamba.state + mamba.num_heads);
    case MixerKind::kShortConvolution: return 4 * h * h;
    case MixerKind::kNone: return 0;
    default: return attention_parameters(model, layer);
  }
}

// Router, topk routed experts with the projections around them, and shared ones.
std::int64_t expert_parameters(const ModelSpec& model, std::int64_t products) {
  const MoeSpec& moe = model.moe;
  const std::int64_t h = model.hidden;
  return h * moe.num_experts + products * routed_width(model) * moe.topk * moe.expert_ffn +
         2 * h * moe.latent + products * h * moe.shared_ffn;
}

// Products of one token with the weights of a layer; of routed experts topk.
double matmul_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t h = model.hidden;
  const std::int64_t ffn_products = model.gated_ffn ? 3 : 2;
  const std::int64_t mixer = mixer_parameters(model, layer);
  const std::int64_t dense = ffn_products * h * model.ffn_of(layer);
  const std::int64_t ffn =
      layer.is_moe ? (model.moe.beside_dense ? dense : 0) + expert_parameters(model, ffn_products)
      : layer.has_ffn ? dense
                      : 0;
  const std::int64_t per_layer = 2 * h * model.per_layer_embedding.width;
  return number(mixer + ffn + per_layer);
}

// Forward products of one token with keys and values, or with the state of a recurrence: a delta
// rule reads it for the key and for the query, and writes it; Mamba-2 writes and reads it.
double mixing_flops(const Job& job, const LayerSpec& layer) {
  const ModelSpec& model = job.model;
  switch (layer.mixer) {
    case MixerKind::kGatedDelta:
    case MixerKind::kKimiDelta:
      return 3 * 2 * number(model.delta.value_width() * model.delta.key_head_dim);
    case MixerKind::kMamba2: return 2 * 2 * number(model.mamba.inner * model.mamba.state);
    case MixerKind::kShortConvolution:
      return 2 * number(model.hidden * model.short_convolution.tokens);
    case MixerKind::kNone: return 0;
    default: break;
  }
  const AttentionHeads heads = model.heads_of(layer);
  const AttentionWork attention = {
      .pairs = attention_pairs(job, layer) / number(job.sequence_length),
      .heads = heads.num_heads,
      .qk_dim = heads.qk_head_dim,
      .v_dim = heads.v_head_dim};
  return attention.forward_flops();
}

// Forward 2 per product; backward twice that.
double layer_flops_per_token(const Job& job, const LayerSpec& layer) {
  return 3 * (2 * matmul_parameters(job.model, layer) + mixing_flops(job, layer));
}

}  // namespace

double model_flops_per_token(const Job& job) {
  const ModelSpec& model = job.model;
  const double head = 6 * number(model.hidden) * number(model.vocab);
  double flops = head;
  for (const LayerSpec& layer : model.layers) { flops += layer_flops_per_token(job, layer); }
  if (model.num_mtp_layers > 0) {
    const double projection = 6 * 2 * number(model.hidden) * number(model.hidden);
    flops += number(model.num_mtp_layers) *
             (layer_flops_per_token(job, model.layers.back()) + projection + head);
  }
  return flops;
}

}  // namespace shardplan
