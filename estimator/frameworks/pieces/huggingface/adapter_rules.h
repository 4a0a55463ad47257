// On which modules peft's adapters may stand, whoever trains them. Sources: peft 0.21
// tuners/tuners_utils.py, tuners/lora/layer.py, utils/transformers_weight_conversion.py.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::huggingface {

inline constexpr ValidityRule kAdapterRank = {
    .name = "adapters_have_a_rank",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.adapters.rank < 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters.rank " + number_text(job.adapters.rank) +
                 "; valid: at least 1, or no adapters";
        }};

// tuners_utils.py inject_adapter: a ValueError where no module is a target.
inline constexpr ValidityRule kAdaptersHaveTargets = {
    .name = "adapters_have_targets",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.adapters.rank > 0 && !has_adapters(job); },
    .explain =
        [](const Job&, const Plan&) {
          std::string names;
          for (const std::string_view name : kLinearLayerNames) { append_item(names, ", ", name); }
          return "adapters on no linear layer, which experts are not; valid targets: " + names;
        }};

// tuners_utils.py _check_lora_target_modules_mamba: a ValueError.
inline constexpr ValidityRule kAdaptedMixerOutputs = {
    .name = "adapters_on_outputs_of_state_spaces",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const auto& targets = job.adapters.targets;
          const bool are_all = std::ranges::all_of(targets, [](bool is_on) { return is_on; });
          return job.adapters.rank > 0 && !are_all && refuses_adapted_outputs(job.model) &&
                 job.adapters.is_on(LinearLayer::kMixerOutput);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters on out_proj of " + job.model.family +
                 ", which peft refuses; valid: in_proj, q_proj, k_proj, v_proj, o_proj, gate_proj, "
                 "up_proj and down_proj";
        }};

// One module has one adapter: those that several places stand for are targets together.
using Places = std::array<LinearLayer, 3>;

inline bool are_alike(const Job& job, const Places& places) {
  const auto is_on = [&job](LinearLayer place) { return job.adapters.is_on(place); };
  return std::ranges::all_of(places, is_on) || std::ranges::none_of(places, is_on);
}

// The modules that are named apart, and the one that the model has; empty: none.
inline std::string parted_module(const Job& job) {
  using enum LinearLayer;
  const ModelClass& family = class_of(job.model);
  if (job.adapters.rank == 0) {
    return "";
  }
  if (family.has_one_qkv && !are_alike(job, {kQuery, kKey, kValue})) {
    return "a part of q_proj, k_proj and v_proj, which are one module, qkv_proj";
  }
  if ((family.has_one_gate_up || !expert_adapters(job).are_none()) &&
      !are_alike(job, {kGate, kUp, kUp})) {
    return "one of gate_proj and up_proj, which are one module, gate_up_proj";
  }
  if (job.model.is_mla() && job.adapters.is_on(kKey) != job.adapters.is_on(kValue)) {
    return "one of k_proj and v_proj, which latent attention has not: on both they are on all of "
           "its projections";
  }
  return "";
}

inline constexpr ValidityRule kWholeModules = {
    .name = "adapters_on_whole_modules",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return !parted_module(job).empty(); },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters on " + parted_module(job) + "; valid: on all of them, or on none";
        }};

// ParamWrapper.__init__: a ValueError.
inline constexpr ValidityRule kPlainOnExperts = {
    .name = "adapters_of_experts_are_plain",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const bool is_refused = job.adapters.dropout > 0 || job.adapters.decomposes_weights;
          return is_refused && !expert_adapters(job).are_none();
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "adapters.dropout or DoRA with adapters on experts, which peft refuses; valid: "
              "neither, or no adapters on gate_proj, up_proj and down_proj");
        }};

// Other adapters than LoRA as they were read, by one GPU or DistributedDataParallel (peft 0.21
// tuners/oft/layer.py, Linear; autocast around parameters in fp32). AdaLoRA takes dropout, and its
// layers on quantized weights are others.
inline std::string unread_with_kind(const Job& job, const Plan& plan) {
  const Adapters& adapters = job.adapters;
  const bool is_quantized = job.quantized.kind != Quantization::kNone;
  return job.model.has_moe_layers()                                       ? "experts"
         : adapters.decomposes_weights                                    ? "DoRA"
         : adapters.dropout > 0 && adapters.kind != AdapterKind::kAdaLora ? "dropout"
         : is_quantized && adapters.kind != AdapterKind::kOft             ? "quantized weights"
         : job.profile.ffn_tiles > 0 && adapters.kind == AdapterKind::kBottleneck ? "ffn_tiles"
         : job.profile.adapter_kernels               ? "adapter_kernels"
         : job.quantized.kind == Quantization::kInt8 ? "int8 weights"
         : plan.zero > 0                             ? "zero " + number_text(plan.zero)
                                                     : "";
}
inline constexpr ValidityRule kRotationsAsRead = {
    .name = "unsupported: adapters.kind",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.adapters.rank > 0 && job.adapters.kind != AdapterKind::kLora &&
                 !unread_with_kind(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::string kind(name_of(job.adapters.kind));
          return not_modelled(job, "adapters.kind", kind + " with " + unread_with_kind(job, plan),
                              "lora, or " + kind + " on dense models with zero 0");
        }};

// Experts one after the other read a weight that peft has made of all of them, expert by expert.
inline constexpr ValidityRule kAdaptedExpertsAreGrouped = {
    .name = "unsupported: adapters_of_eager_experts",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.eager_experts && !expert_adapters(job).are_none();
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "eager_experts", "true with adapters on experts",
                              "false, or adapters on q_proj, k_proj, v_proj and o_proj alone");
        }};

}  // namespace shardplan::huggingface
