#include "estimator/frameworks/pieces/huggingface/tuned.h"

#include <algorithm>

#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {

namespace {

void add_attention(LinearWeights& weights, const ModelSpec& model) {
  using enum LinearLayer;
  const std::int64_t query = model.num_heads * model.qk_head_dim();
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
}

void add_ffn(LinearWeights& weights, const ModelSpec& model, std::int64_t width) {
  using enum LinearLayer;
  if (width == 0) {
    return;
  }
  if (class_of(model).has_one_gate_up) {
    weights.add({kGate, model.hidden, 2 * width});
  } else {
    weights.add({kGate, model.hidden, width});
    weights.add({kUp, model.hidden, width});
  }
  weights.add({kDown, width, model.hidden});
}

bool is_of_ffn(LinearLayer place) {
  using enum LinearLayer;
  return place == kGate || place == kUp || place == kDown;
}

// Norms, biases and what experts have.
std::int64_t other_elements(const ModelSpec& model, const LayerSpec& layer) {
  const MlaSpec& mla = model.mla;
  const std::int64_t query = model.num_heads * model.head_dim;
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  const std::int64_t latent = mla.q_lora_rank + mla.kv_lora_rank;
  std::int64_t elements = model.norms_per_layer * model.hidden;
  elements += model.qk_norm && !model.is_mla() ? 2 * model.head_dim : 0;
  elements += model.is_mla() ? latent : 0;
  if (model.qkv_bias) {
    elements += model.is_mla() ? latent + mla.qk_rope_head_dim : query + 2 * key;
  }
  elements += model.attention_output_bias ? model.hidden : 0;
  if (!layer.is_moe) {
    return elements + (model.ffn_bias ? 2 * model.ffn + model.hidden : 0);
  }
  const MoeSpec& moe = model.moe;
  return elements + moe.num_experts * model.hidden * (3 * moe.expert_ffn + 1) +
         (moe.router_bias ? moe.num_experts : 0) + (moe.shared_gate ? model.hidden : 0);
}

std::int64_t num_layers(const ModelSpec& model, bool is_moe) {
  return std::ranges::count(model.layers, is_moe, &LayerSpec::is_moe);
}

}  // namespace

LinearWeights linear_weights(const ModelSpec& model, const LayerSpec& layer) {
  LinearWeights weights;
  add_attention(weights, model);
  add_ffn(weights, model, layer.is_moe ? model.moe.shared_ffn : model.ffn);
  return weights;
}

bool has_adapter(const Job& job, LinearLayer place) {
  return job.adapters.rank > 0 && job.adapters.is_on(place) &&
         !(is_of_ffn(place) && class_of(job.model).adapts_experts);
}

ExpertAdapters expert_adapters(const Job& job) {
  using enum LinearLayer;
  if (!class_of(job.model).adapts_experts) {
    return {};
  }
  const std::int64_t rank = job.adapters.rank;
  return {.gate_up = job.adapters.is_on(kGate) ? 2 * rank : 0,
          .down = job.adapters.is_on(kDown) ? rank : 0};
}

std::int64_t model_elements(const ModelSpec& model) {
  const std::int64_t tables = model.tied_embeddings ? 1 : 2;
  std::int64_t elements = tables * model.vocab * model.hidden + model.hidden;
  for (const bool is_moe : {false, true}) {
    const LayerSpec layer = {.is_moe = is_moe};
    std::int64_t of_layer = other_elements(model, layer);
    for (const LinearWeight& weight : linear_weights(model, layer)) {
      of_layer += weight.elements();
    }
    elements += num_layers(model, is_moe) * of_layer;
  }
  return elements;
}

std::int64_t adapter_elements(const Job& job) {
  const MoeSpec& moe = job.model.moe;
  std::int64_t elements = 0;
  for (const bool is_moe : {false, true}) {
    std::int64_t of_layer = 0;
    for (const LinearWeight& weight : linear_weights(job.model, {.is_moe = is_moe})) {
      const std::int64_t magnitudes = job.adapters.decomposes_weights ? weight.outputs : 0;
      of_layer += has_adapter(job, weight.place)
                      ? job.adapters.rank * (weight.inputs + weight.outputs) + magnitudes
                      : 0;
    }
    if (is_moe) {
      const ExpertAdapters ranks = expert_adapters(job);
      of_layer += moe.num_experts * (ranks.gate_up * (job.model.hidden + 2 * moe.expert_ffn) +
                                     ranks.down * (job.model.hidden + moe.expert_ffn));
    }
    elements += num_layers(job.model, is_moe) * of_layer;
  }
  return elements;
}

double trained_share(const Job& job) {
  return job.adapters.rank == 0 ? 1
                                : number(adapter_elements(job)) / number(model_elements(job.model));
}

DType compute_dtype(const Plan& plan) {
  return plan.precision == Precision::kFp16 ? DType::kFp16 : DType::kBf16;
}

bool uses_autocast(const Job& job, const Plan& plan) {
  const bool is_gathered = plan.zero > 0 && job.profile.fsdp_version == 2;
  return !is_gathered && plan.precision != Precision::kFp32 && job.profile.autocast;
}

bool casts_weights(const Job& job, const Plan& plan) {
  return plan.zero == 0 && uses_autocast(job, plan) && job.profile.weights_dtype == DType::kFp32 &&
         job.quantized.kind == Quantization::kNone;
}

bool has_wide_stream(const Job& job, const Plan& plan) {
  return plan.zero == 0 && uses_autocast(job, plan) &&
         (job.profile.weights_dtype == DType::kFp32 || job.profile.wide_ends);
}

namespace {

double trained_bytes(const Job& job) {
  return number(bytes_of(job.adapters.rank > 0 ? job.adapters.dtype : job.profile.weights_dtype));
}

}  // namespace

double optimizer_element_bytes(const Job& job, const Plan& plan) {
  return plan.zero > 0 ? number(bytes_of(DType::kFp32)) : trained_bytes(job);
}

double autograd_element_bytes(const Job& job, const Plan& plan) {
  return plan.zero > 0 ? number(bytes_of(DType::kBf16)) : trained_bytes(job);
}

}  // namespace shardplan::huggingface
