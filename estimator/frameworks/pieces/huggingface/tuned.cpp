#include "estimator/frameworks/pieces/huggingface/tuned.h"

#include <algorithm>

#include "estimator/frameworks/pieces/huggingface/layer_weights.h"
#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {

namespace {

bool is_of_ffn(LinearLayer place) {
  using enum LinearLayer;
  return place == kGate || place == kUp || place == kDown;
}

std::int64_t norm_elements(const ModelSpec& model) {
  return (model.layer_norm && model.norm_bias ? 2 : 1) * model.hidden;
}

// Beside their projections.
std::int64_t delta_elements(const DeltaSpec& delta) {
  const std::int64_t channels = 2 * delta.key_width() + delta.value_width();
  return channels * delta.convolution + 2 * delta.value_heads + delta.value_head_dim;
}

std::int64_t kimi_elements(const DeltaSpec& delta) {
  return delta.value_width() * (3 * delta.convolution + 1) + delta.value_heads +
         delta.value_head_dim;
}

std::int64_t mamba_elements(const ModelSpec& model) {
  const MambaSpec& mamba = model.mamba;
  const std::int64_t channels = mamba_channels(mamba);
  const std::int64_t projected = mamba.inner + channels + mamba.num_heads;
  return (mamba.projection_bias ? projected + model.hidden : 0) + 3 * mamba.num_heads +
         (mamba.gated_norm ? mamba.inner : 0) +
         channels * (mamba.convolution + (mamba.convolution_bias ? 1 : 0));
}

std::int64_t selective_elements(const ModelSpec& model) {
  const MambaSpec& mamba = model.mamba;
  const std::int64_t columns =
      mamba.convolution + (mamba.convolution_bias ? 1 : 0) + mamba.state + 1 + 1;
  return mamba.inner * columns + mamba.step_rank + 2 * mamba.state +
         (mamba.projection_bias ? 2 * mamba.inner + model.hidden : 0);
}

std::int64_t convolution_elements(const ModelSpec& model) {
  const ShortConvolutionSpec& spec = model.short_convolution;
  return model.hidden * (spec.tokens + (spec.has_bias ? 3 + 1 + 1 : 0));
}

// Norms and biases of attention, and sinks.
std::int64_t other_attention_elements(const ModelSpec& model, const LayerSpec& layer) {
  const MlaSpec& mla = model.mla;
  const std::int64_t query = query_width(model);
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  const std::int64_t latent = mla.q_lora_rank + mla.kv_lora_rank;
  if (has_own_attention(layer)) {
    const std::int64_t norms = layer.key_values == KeyValueSource::kEarlierLayer ? 1 : 2;
    return model.qk_norm ? norms * model.heads_of(layer).qk_head_dim : 0;
  }
  std::int64_t elements = layer.has_sinks ? model.num_heads : 0;
  if (model.qk_norm && !model.is_mla()) {
    elements += model.norms_all_heads ? query + key : 2 * model.head_dim;
  }
  elements += model.is_mla() ? latent : 0;
  if (model.qkv_bias) {
    elements += model.is_mla() ? latent + mla.qk_rope_head_dim : query + 2 * key;
  }
  return elements + (model.attention_output_bias ? model.hidden : 0);
}

std::int64_t expert_elements(const ModelSpec& model) {
  const MoeSpec& moe = model.moe;
  const std::int64_t wide = (model.gated_ffn ? 2 : 1) * moe.expert_ffn;
  const std::int64_t biases = moe.biased_experts ? wide + model.hidden : 0;
  const bool has_router_bias = moe.router_bias || moe.biased_router;
  const std::int64_t seen = moe.latent > 0 ? moe.latent : model.hidden;
  return moe.num_experts * (seen * (wide + moe.expert_ffn) + model.hidden + biases) +
         (has_router_bias ? moe.num_experts : 0);
}

// Norms, biases, a delta net and what experts have.
std::int64_t other_elements(const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t norms = model.norms_per_layer + (model.per_layer_embedding.width > 0 ? 1 : 0);
  std::int64_t elements = norms * norm_elements(model);
  switch (layer.mixer) {
    case MixerKind::kGatedDelta: elements += delta_elements(model.delta); break;
    case MixerKind::kKimiDelta: elements += kimi_elements(model.delta); break;
    case MixerKind::kShortConvolution: elements += convolution_elements(model); break;
    case MixerKind::kMamba1: elements += selective_elements(model); break;
    case MixerKind::kMamba2: elements += mamba_elements(model); break;
    case MixerKind::kNone: break;
    default: elements += other_attention_elements(model, layer);
  }
  elements += layer.has_mamba_beside ? mamba_elements(model) : 0;
  if (layer.is_moe) {
    const std::int64_t beside =
        model.moe.beside_dense ? 3 * norm_elements(model) + model.hidden + model.moe.num_experts
                               : 0;
    return elements + expert_elements(model) + beside;
  }
  if (!layer.has_ffn) {
    return elements;
  }
  const bool learns_activation = model.activation == Activation::kXielu;
  return elements + (learns_activation ? 2 : 0) +
         (model.ffn_bias ? (model.gated_ffn ? 2 : 1) * model.ffn + model.hidden : 0);
}

// The sum over all layers of what one of its kind has.
template <typename Function>
std::int64_t sum_over_layers(const ModelSpec& model, Function elements_of) {
  std::int64_t sum = 0;
  std::int64_t of_last = 0;
  const LayerSpec* last = nullptr;
  for (const LayerSpec& layer : model.layers) {
    if (last == nullptr || layer != *last) {
      of_last = elements_of(layer);
    }
    last = &layer;
    sum += of_last;
  }
  return sum;
}

}  // namespace

bool has_ffn_modules(const ModelSpec& model) {
  return model.has_dense_layers() || model.moe.shared_ffn > 0 || model.moe.beside_dense;
}

namespace {

// A list of all linear layers has names of an FFN where there is one.
bool names_experts(const Job& job) {
  switch (class_of(job.model).adapted_experts) {
    case AdaptedExperts::kNever: return false;
    case AdaptedExperts::kByShorthand:
      return job.adapters.expert_targets == ExpertTargets::kAllLinear;
    case AdaptedExperts::kByFfnNames: break;
  }
  return job.adapters.expert_targets != ExpertTargets::kNone || has_ffn_modules(job.model);
}

}  // namespace

bool has_adapter(const Job& job, LinearLayer place) {
  const bool is_left_out = place == LinearLayer::kMixerOutput && refuses_adapted_outputs(job.model);
  return job.adapters.rank > 0 && job.adapters.kind != AdapterKind::kBottleneck &&
         job.adapters.is_on(place) && !is_left_out && !(is_of_ffn(place) && names_experts(job));
}

double num_adapters(const Job& job, const LayerSpec& layer) {
  if (job.adapters.rank == 0) {
    return 0;
  }
  const LinearWeights weights = linear_weights(job.model, layer);
  return number(std::count_if(weights.begin(), weights.end(), [&job](const LinearWeight& weight) {
    return is_adapted(job, weight.place);
  }));
}

bool has_adapters(const Job& job) {
  const auto has_one = [&job](const LayerSpec& layer) {
    const LinearWeights weights = linear_weights(job.model, layer);
    return std::any_of(weights.begin(), weights.end(), [&job](const LinearWeight& weight) {
      return is_adapted(job, weight.place);
    });
  };
  return !expert_adapters(job).are_none() || std::ranges::any_of(job.model.layers, has_one);
}

bool refuses_adapted_outputs(const ModelSpec& model) {
  return class_of(model).refuses_adapted_outputs;
}

ExpertAdapters expert_adapters(const Job& job) {
  using enum LinearLayer;
  if (!job.model.has_moe_layers() || !names_experts(job)) {
    return {};
  }
  const Adapters& adapters = job.adapters;
  return {.gate_up = adapters.is_on(kGate) || adapters.is_on(kUp) ? 2 * adapters.rank : 0,
          .down = adapters.is_on(kDown) ? adapters.rank : 0,
          .router = adapters.expert_targets == ExpertTargets::kAllLinear ? adapters.rank : 0};
}

namespace {

// The table of embeddings of every layer, its projection and a norm.
LinearWeight per_layer_projection(const ModelSpec& model) {
  return {LinearLayer::kLatent, model.hidden, model.num_layers() * model.per_layer_embedding.width};
}
std::int64_t per_layer_elements(const ModelSpec& model) {
  const PerLayerEmbeddingSpec& spec = model.per_layer_embedding;
  return spec.width == 0 ? 0
                         : spec.vocab * model.num_layers() * spec.width + spec.width +
                               per_layer_projection(model).elements();
}

}  // namespace

std::int64_t model_elements(const ModelSpec& model) {
  const std::int64_t tables = model.tied_embeddings ? 1 : 2;
  std::int64_t elements = (tables * model.vocab + model.learned_positions) * model.hidden +
                          norm_elements(model) + (model.head_bias ? model.vocab : 0);
  elements += per_layer_elements(model);
  return elements + sum_over_layers(model, [&](const LayerSpec& layer) {
           std::int64_t of_layer = other_elements(model, layer);
           for (const LinearWeight& weight : linear_weights(model, layer)) {
             of_layer += weight.elements();
           }
           return of_layer;
         });
}

namespace {

// Of one linear layer: B and A, and DoRA's magnitudes or AdaLoRA's scales; or what OFT's blocks
// have above their diagonals. Behind one both layers of a bottleneck, with biases.
std::int64_t adapter_elements(const Adapters& adapters, const LinearWeight& weight) {
  if (adapters.kind == AdapterKind::kOft) {
    return weight.inputs * (rotated_together(weight.inputs, adapters.rank) - 1) / 2;
  }
  if (adapters.kind == AdapterKind::kBottleneck) {
    return adapters.rank * (2 * weight.outputs + 1) + weight.outputs;
  }
  return adapters.rank * (weight.inputs + weight.outputs) +
         (adapters.decomposes_weights ? weight.outputs : 0) +
         (adapters.kind == AdapterKind::kAdaLora ? adapters.rank : 0);
}

}  // namespace

std::int64_t adapter_elements(const Job& job) {
  const MoeSpec& moe = job.model.moe;
  const bool adapts_table =
      job.model.per_layer_embedding.width > 0 && is_adapted(job, LinearLayer::kLatent);
  const std::int64_t of_table =
      adapts_table ? adapter_elements(job.adapters, per_layer_projection(job.model)) : 0;
  return of_table + sum_over_layers(job.model, [&](const LayerSpec& layer) {
           std::int64_t of_layer = 0;
           for (const LinearWeight& weight : linear_weights(job.model, layer)) {
             of_layer += is_adapted(job, weight.place) ? adapter_elements(job.adapters, weight) : 0;
           }
           if (layer.is_moe) {
             const ExpertAdapters ranks = expert_adapters(job);
             of_layer +=
                 moe.num_experts * (ranks.gate_up * (job.model.hidden + 2 * moe.expert_ffn) +
                                    ranks.down * (job.model.hidden + moe.expert_ffn)) +
                 ranks.router * (job.model.hidden + moe.num_experts);
           }
           return of_layer;
         });
}

double trained_share(const Job& job) {
  if (!job.name_rules.empty()) {
    return share_by_names(job);
  }
  return job.adapters.rank == 0 ? 1
                                : number(adapter_elements(job)) / number(model_elements(job.model));
}

bool finds_unused(const Job& job, const Plan& plan) {
  return job.profile.finds_unused || (job.profile.loop == TrainerLoop::kTrainer &&
                                      plan.recompute.granularity == RecomputeGranularity::kNone);
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
