// Validity rules named "unsupported: <field>": values of a job or plan that a profile does not
// model are refused by name, never ignored. They assume nothing about the rest of the plan: search
// asks them alone which values of a field a profile knows.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// Text as a template argument.
template <std::size_t size>
struct FixedText {
  std::array<char, size> letters{};
  // Not explicit: literals stand for it in template arguments.
  constexpr FixedText(const char (&literal)[size]) {  // NOLINT(google-explicit-constructor)
    std::copy_n(literal, size, letters.begin());
  }
  constexpr std::string_view view() const { return {letters.data(), size - 1}; }
};

template <auto field>
constexpr const auto& value_in(const Job& job, const Plan& plan) {
  if constexpr (requires { plan.*field; }) {
    return plan.*field;
  } else if constexpr (requires { job.model.*field; }) {
    return job.model.*field;
  } else {
    return job.*field;
  }
}

template <auto field>
constexpr PlanFields fields_read() {
  if constexpr (requires(const Plan& plan) { plan.*field; }) {
    return fields_of(field);
  } else {
    return {};
  }
}

template <class Value>
std::string value_text(Value value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "true" : "false";
  } else {
    return number_text(static_cast<std::int64_t>(value));
  }
}

// "unsupported: <field>": the field of a plan, job or model has none of the values that a profile
// models.
template <FixedText rule, auto field, auto... values>
inline constexpr ValidityRule kOnlyValues = {
    .name = rule.view(),
    .reads = fields_read<field>(),
    .broken = [](const Job& job,
                 const Plan& plan) { return ((value_in<field>(job, plan) != values) && ...); },
    .explain =
        [](const Job& job, const Plan& plan) {
          std::string modelled;
          (append_item(modelled, ", ", value_text(values)), ...);
          return not_modelled(job, rule.view().substr(std::string_view("unsupported: ").size()),
                              value_text(value_in<field>(job, plan)), modelled);
        }};

// A part of the model for which the framework has no piece (FrameworkLayout::model_parts).
inline constexpr ValidityRule kKnownModelParts = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return missing_part(job.model, job.profile.layout.model_parts).has_value();
        },
    .explain =
        [](const Job& job, const Plan&) {
          const ModelPart part = *missing_part(job.model, job.profile.layout.model_parts);
          return not_modelled(job, "model.layers",
                              std::string(name_of(part)) + " (" + job.model.family + ")",
                              "models without");
        }};

inline constexpr ValidityRule kTrainsAll = {
    .name = "unsupported: trained",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return trained_parameters(job) != TrainedParameters::kAll; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "trained", name_of(trained_parameters(job)),
                              name_of(TrainedParameters::kAll));
        }};
inline constexpr ValidityRule kNotByName = {
    .name = "unsupported: name_rules",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return trained_parameters(job) == TrainedParameters::kNamed; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "trained", name_of(trained_parameters(job)),
                              std::string(name_of(TrainedParameters::kAll)) + ", " +
                                  std::string(name_of(TrainedParameters::kAdapters)));
        }};
inline constexpr ValidityRule kQuantizationUnsupported = {
    .name = "unsupported: quantization",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.quantized.kind != Quantization::kNone; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "quantization", name_of(job.quantized.kind),
                              name_of(Quantization::kNone));
        }};
inline constexpr ValidityRule kAdamWOnly =
    kOnlyValues<"unsupported: optimizer", &Job::optimizer, OptimizerKind::kAdamW>;
inline constexpr ValidityRule kMasterFp32Only =
    kOnlyValues<"unsupported: master_dtype", &Plan::master_dtype, DType::kFp32>;
inline constexpr ValidityRule kBf16Fp16OrFp8 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16,
                Precision::kFp8>;
inline constexpr ValidityRule kPlainOr1F1B =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone, Schedule::k1F1B,
                Schedule::kInterleaved1F1B>;

inline constexpr ValidityRule kOffloadActivationsUnsupported = {
    .name = "unsupported: offload.activations",
    .reads = {PlanField::kOffload},
    .broken = [](const Job&, const Plan& plan) { return plan.offload.activations; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "offload.activations", "true", "false");
        }};

inline constexpr ValidityRule kOffloadParametersUnsupported = {
    .name = "unsupported: offload.parameters",
    .reads = {PlanField::kOffload},
    .broken = [](const Job&, const Plan& plan) { return plan.offload.parameters; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "offload.parameters", "true", "false");
        }};

inline constexpr ValidityRule kOffloadOptimizerUnsupported = {
    .name = "unsupported: offload.optimizer",
    .reads = {PlanField::kOffload},
    .broken = [](const Job&, const Plan& plan) { return plan.offload.optimizer != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "offload.optimizer", number_text(plan.offload.optimizer), "0");
        }};

inline constexpr ValidityRule kLayerNormUnsupported =
    kOnlyValues<"unsupported: model.layer_norm", &ModelSpec::layer_norm, false>;
inline constexpr ValidityRule kLearnedPositionsUnsupported =
    kOnlyValues<"unsupported: model.learned_positions", &ModelSpec::learned_positions, 0>;

inline constexpr ValidityRule kHiddenDropoutUnsupported = {
    .name = "unsupported: hidden_dropout",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.hidden_dropout != 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "hidden_dropout", number_text(job.hidden_dropout), "0");
        }};

inline constexpr ValidityRule kAttentionDropoutUnsupported = {
    .name = "unsupported: attention_dropout",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.attention_dropout != 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_dropout", number_text(job.attention_dropout), "0");
        }};

inline constexpr ValidityRule kRecomputePolicyUnsupported = {
    .name = "unsupported: recompute.policy",
    .reads = {PlanField::kRecompute},
    .broken = [](const Job&, const Plan& plan) { return !plan.recompute.policy.empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "recompute.policy", plan.recompute.policy,
                              "recompute.modules instead");
        }};

inline constexpr ValidityRule kMoeBufferFactorUnsupported = {
    .name = "unsupported: moe_buffer_factor",
    .reads = {PlanField::kMoeBufferFactor},
    .broken = [](const Job&, const Plan& plan) { return !(plan.moe_buffer_factor == 1); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "moe_buffer_factor", number_text(plan.moe_buffer_factor), "1");
        }};

// torchtitan v0.2.2, models/llama3 and llama4/model/model.py (Attention); nanotron at v0.4 and
// 2411b022, models/llama.py (CausalSelfAttention) and qwen.py (Qwen2Attention): these models divide
// their width by the heads and have no parameter for another one. Those with norms of queries and
// keys (Qwen3) and latent attention have.
inline constexpr ValidityRule kHeadDimFromHidden = {
    .name = "head_dim_is_hidden_over_heads",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const ModelSpec& model = job.model;
          return !model.is_mla() && !model.qk_norm &&
                 model.head_dim != model.hidden / model.num_heads;
        },
    .explain =
        [](const Job& job, const Plan&) {
          const ModelSpec& model = job.model;
          return "head_dim " + number_text(model.head_dim) + " with hidden " +
                 number_text(model.hidden) + " and num_heads " + number_text(model.num_heads) +
                 ": " + job.profile.name + " " + job.profile.version +
                 " divides the one by the other; valid head_dim: " +
                 number_text(model.hidden / model.num_heads);
        }};

// PyTorch's fused attention takes heads of up to 256 (aten sdp_utils); beyond, it writes the scores
// out, which was measured (2.6 times the time) and is not modelled.
inline constexpr std::int64_t kLargestFusedHeadDim = 256;
inline constexpr ValidityRule kFusedHeadDim = {
    .name = "unsupported: model.head_dim",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.head_dim > kLargestFusedHeadDim; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.head_dim", number_text(job.model.head_dim),
                              "at most " + number_text(kLargestFusedHeadDim));
        }};

}  // namespace shardplan
