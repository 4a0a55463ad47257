#include "estimator/time/model_flops.h"

#include "estimator/plan/number.h"
#include "estimator/time/block_work.h"

namespace shardplan {
namespace {

// Products of one token with the weights of a layer; of routed experts topk.
double matmul_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const MlaSpec& mla = model.mla;
  const std::int64_t h = model.hidden;
  const std::int64_t a = model.num_heads;
  const std::int64_t ffn_products = model.gated_ffn ? 3 : 2;
  const bool has_gate = model.attention_gate == AttentionGate::kPerElement;
  std::int64_t attention = h * ((has_gate ? 3 : 2) * a + 2 * model.num_kv_heads) * model.head_dim;
  if (layer.mixer == MixerKind::kShortConvolution) {
    attention = 4 * h * h;
  } else if (layer.mixer == MixerKind::kGatedDelta) {
    const DeltaSpec& delta = model.delta;
    attention = h * (2 * delta.key_width() + 3 * delta.value_width() + 2 * delta.value_heads);
  } else if (model.is_mla()) {
    const std::int64_t query = a * mla.qk_head_dim();
    attention = (mla.q_lora_rank > 0 ? mla.q_lora_rank * (h + query) : h * query) +
                h * (mla.kv_lora_rank + mla.qk_rope_head_dim) +
                mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim) +
                a * mla.v_head_dim * h;
  }
  const std::int64_t ffn =
      layer.is_moe
          ? h * model.moe.num_experts +
                ffn_products * h * (model.moe.topk * model.moe.expert_ffn + model.moe.shared_ffn)
          : ffn_products * h * model.ffn;
  return number(attention + ffn);
}

// A delta rule token by token: the state is read for the key and for the query, and written.
double delta_flops_per_token(const DeltaSpec& delta) {
  return 3 * 2 * number(delta.value_width() * delta.key_head_dim);
}

// Forward 2 per product; backward twice that.
double layer_flops_per_token(const Job& job, const LayerSpec& layer) {
  const ModelSpec& model = job.model;
  if (layer.mixer == MixerKind::kShortConvolution) {
    return 3 * 2 * matmul_parameters(model, layer);
  }
  if (layer.mixer == MixerKind::kGatedDelta) {
    return 3 * (2 * matmul_parameters(model, layer) + delta_flops_per_token(model.delta));
  }
  const AttentionWork attention = {
      .pairs = attention_pairs(job, layer) / number(job.sequence_length),
      .heads = model.num_heads,
      .qk_dim = model.qk_head_dim(),
      .v_dim = model.v_head_dim()};
  return 3 * (2 * matmul_parameters(model, layer) + attention.forward_flops());
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
