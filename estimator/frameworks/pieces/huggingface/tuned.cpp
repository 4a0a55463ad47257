#include "estimator/frameworks/pieces/huggingface/tuned.h"

#include <algorithm>

#include "estimator/plan/number.h"

namespace shardplan::huggingface {

std::array<LinearWeight, kLinearLayerNames.size()> linear_weights(const ModelSpec& model) {
  using enum LinearLayer;
  const std::int64_t query = model.num_heads * model.head_dim;
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  return {{{kQuery, model.hidden, query},
           {kKey, model.hidden, key},
           {kValue, model.hidden, key},
           {kOutput, query, model.hidden},
           {kGate, model.hidden, model.ffn},
           {kUp, model.hidden, model.ffn},
           {kDown, model.ffn, model.hidden}}};
}

std::int64_t model_elements(const ModelSpec& model) {
  const std::int64_t query = model.num_heads * model.head_dim;
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  const std::int64_t dense = 3 * model.hidden * model.ffn;
  const std::int64_t experts =
      model.moe.num_experts * model.hidden * (3 * model.moe.expert_ffn + 1);
  const std::int64_t num_moe = std::ranges::count_if(model.layers, &LayerSpec::is_moe);
  std::int64_t layer =
      model.norms_per_layer * model.hidden + (model.qk_norm ? 2 * model.head_dim : 0);
  for (const LinearWeight& weight : linear_weights(model)) { layer += weight.elements(); }
  layer += model.qkv_bias ? query + 2 * key : 0;
  layer += model.attention_output_bias ? model.hidden : 0;
  layer += model.ffn_bias ? 2 * model.ffn + model.hidden : 0;
  const std::int64_t tables = model.tied_embeddings ? 1 : 2;
  return model.num_layers() * layer + num_moe * (experts - dense) +
         tables * model.vocab * model.hidden + model.hidden;
}

std::int64_t adapter_elements(const Job& job) {
  std::int64_t of_layer = 0;
  for (const LinearWeight& weight : linear_weights(job.model)) {
    const std::int64_t magnitudes = job.adapters.decomposes_weights ? weight.outputs : 0;
    of_layer += job.adapters.is_on(weight.place)
                    ? job.adapters.rank * (weight.inputs + weight.outputs) + magnitudes
                    : 0;
  }
  return of_layer * job.model.num_layers();
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
