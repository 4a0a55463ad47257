// On which modules adapters may stand. Sources: peft 0.21 tuners/tuners_utils.py,
// tuners/lora/layer.py, utils/transformers_weight_conversion.py.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::transformers {

// One module has one adapter: those that several places stand for are targets together.
using Places = std::array<LinearLayer, 3>;

inline bool are_alike(const Job& job, const Places& places) {
  const auto is_on = [&job](LinearLayer place) { return job.adapters.is_on(place); };
  return std::ranges::all_of(places, is_on) || std::ranges::none_of(places, is_on);
}

// The modules that are named apart, and the one that the model has; empty: none.
inline std::string parted_module(const Job& job) {
  using enum LinearLayer;
  const huggingface::ModelClass& family = huggingface::class_of(job.model);
  if (job.adapters.rank == 0) {
    return "";
  }
  if (family.has_one_qkv && !are_alike(job, {kQuery, kKey, kValue})) {
    return "a part of q_proj, k_proj and v_proj, which are one module, qkv_proj";
  }
  if ((family.has_one_gate_up || family.adapts_experts) && !are_alike(job, {kGate, kUp, kUp})) {
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
          const huggingface::ExpertAdapters ranks = huggingface::expert_adapters(job);
          const bool is_refused = job.adapters.dropout > 0 || job.adapters.decomposes_weights;
          return is_refused && job.model.has_moe_layers() && (ranks.gate_up > 0 || ranks.down > 0);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "adapters.dropout or DoRA with adapters on experts, which peft refuses; valid: "
              "neither, or no adapters on gate_proj, up_proj and down_proj");
        }};

// axolotl's functions as they run on plain tensors (067b021 kernels/lora.py).
inline constexpr ValidityRule kKernelsOnPlainAdapters = {
    .name = "unsupported: adapter_kernels",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.adapter_kernels && job.adapters.rank > 0 &&
                 (plan.zero > 0 || job.adapters.decomposes_weights ||
                  job.quantized.kind == Quantization::kInt8);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "adapter_kernels",
                              plan.zero > 0 ? "true with zero " + number_text(plan.zero)
                              : job.adapters.decomposes_weights ? "true with DoRA"
                                                                : "true with int8 weights",
                              "false, or plain adapters with zero 0");
        }};

}  // namespace shardplan::transformers
