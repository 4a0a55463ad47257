#include "estimator/frameworks/pieces/huggingface/tuned.h"

#include <algorithm>

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {

namespace {

// Of attention that makes its gate, too.
std::int64_t query_width(const ModelSpec& model) {
  const bool makes_gate =
      model.attention_gate == AttentionGate::kPerElement && !class_of(model).gates_apart;
  return (makes_gate ? 2 : 1) * model.num_heads * model.qk_head_dim();
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

bool is_of_ffn(LinearLayer place) {
  using enum LinearLayer;
  return place == kGate || place == kUp || place == kDown;
}

std::int64_t norm_elements(const ModelSpec& model) {
  return (model.layer_norm && model.norm_bias ? 2 : 1) * model.hidden;
}

std::int64_t mamba_channels(const MambaSpec& mamba) {
  return mamba.inner + 2 * mamba.groups * mamba.state;
}

// Beside their projections.
std::int64_t delta_elements(const DeltaSpec& delta) {
  const std::int64_t channels = 2 * delta.key_width() + delta.value_width();
  return channels * delta.convolution + 2 * delta.value_heads + delta.value_head_dim;
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
    case MixerKind::kAttention: add_attention(weights, model); break;
    case MixerKind::kGatedDelta: add_delta_net(weights, model); break;
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

// Norms and biases of attention, and sinks.
std::int64_t other_attention_elements(const ModelSpec& model, const LayerSpec& layer) {
  const MlaSpec& mla = model.mla;
  const std::int64_t query = query_width(model);
  const std::int64_t key = model.num_kv_heads * model.head_dim;
  const std::int64_t latent = mla.q_lora_rank + mla.kv_lora_rank;
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
  std::int64_t elements = model.norms_per_layer * norm_elements(model);
  switch (layer.mixer) {
    case MixerKind::kGatedDelta: elements += delta_elements(model.delta); break;
    case MixerKind::kShortConvolution: elements += convolution_elements(model); break;
    case MixerKind::kMamba1: elements += selective_elements(model); break;
    case MixerKind::kMamba2: elements += mamba_elements(model); break;
    case MixerKind::kNone: break;
    default: elements += other_attention_elements(model, layer);
  }
  elements += layer.has_mamba_beside ? mamba_elements(model) : 0;
  if (layer.is_moe) {
    return elements + expert_elements(model);
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

LinearWeights linear_weights(const ModelSpec& model, const LayerSpec& layer) {
  LinearWeights weights;
  add_mixer(weights, model, layer);
  if (layer.has_ffn) {
    add_ffn(weights, model, layer.is_moe ? model.moe.shared_ffn : model.ffn);
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

bool has_ffn_modules(const ModelSpec& model) {
  return model.has_dense_layers() || model.moe.shared_ffn > 0;
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

std::int64_t model_elements(const ModelSpec& model) {
  const std::int64_t tables = model.tied_embeddings ? 1 : 2;
  std::int64_t elements = (tables * model.vocab + model.learned_positions) * model.hidden +
                          norm_elements(model) + (model.head_bias ? model.vocab : 0);
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
  return sum_over_layers(job.model, [&](const LayerSpec& layer) {
    std::int64_t of_layer = 0;
    for (const LinearWeight& weight : linear_weights(job.model, layer)) {
      of_layer += is_adapted(job, weight.place) ? adapter_elements(job.adapters, weight) : 0;
    }
    if (layer.is_moe) {
      const ExpertAdapters ranks = expert_adapters(job);
      of_layer += moe.num_experts * (ranks.gate_up * (job.model.hidden + 2 * moe.expert_ffn) +
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
