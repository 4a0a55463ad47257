// What torchtitan v0.2.2 refuses of GPT-OSS, and what of it is modelled (models/gpt_oss).
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/plan/model_parts.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::torchtitan {

inline bool is_gpt_oss(const Job& job) {
  return is_gpt_oss(job.model);
}

// models/gpt_oss/model: sinks and biases everywhere, a mixture in every layer, and a window on the
// first layer and every second one behind it.
inline bool is_described_gpt_oss(const ModelSpec& model) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    const bool is_windowed = layer.attention_window > 0 && !layer.attends_in_chunks;
    if (!layer.is_moe || !layer.has_sinks || is_windowed != (i % 2 == 0)) {
      return false;
    }
  }
  return model.qkv_bias && model.attention_output_bias && model.moe.biased_router &&
         model.moe.biased_experts && model.moe.shared_ffn == 0 && !model.tied_embeddings &&
         !model.qk_norm && model.activation == Activation::kClampedSwiglu;
}

// train.py stops where a model has no pipelining function, and models/gpt_oss/__init__.py gives
// None.
inline constexpr ValidityRule kGptOssOnOneStage = {
    .name = "gpt_oss_needs_pp_1",
    .reads = {PlanField::kPp},
    .broken = [](const Job& job, const Plan& plan) { return is_gpt_oss(job) && plan.pp > 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "pp " + number_text(plan.pp) +
                 ": \"Pipeline Parallel is enabled but gpt_oss does not support pipelining\" "
                 "(train.py of torchtitan v0.2.2); valid: pp 1";
        }};

inline constexpr ValidityRule kGptOssWithoutCp = {
    .name = "gpt_oss_needs_cp_1",
    .reads = {PlanField::kCp},
    .broken = [](const Job& job, const Plan& plan) { return is_gpt_oss(job) && plan.cp > 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "cp " + number_text(plan.cp) +
                 ": \"CP support for gpt-oss model is still in progress.\" "
                 "(models/gpt_oss/model/args.py of torchtitan v0.2.2); valid: cp 1";
        }};

// parallelize_gptoss of models/gpt_oss/infra/parallelize.py compiles no layer, whatever
// compile.components says; the loss is compiled as every model's.
inline constexpr ValidityRule kGptOssEager = {
    .name = "gpt_oss_layers_are_not_compiled",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return is_gpt_oss(job) && compiles_layers(job.profile); },
    .explain = [](const Job&, const Plan&) -> std::string {
      return "compile with compile_layers true: torchtitan v0.2.2 never compiles GPT-OSS's layers "
             "(models/gpt_oss/infra/parallelize.py); valid: compile_layers false, the loss alone";
    }};

// models/gpt_oss/model/model.py, Attention: "gpt-oss only support FlexAttention" (args.py).
inline constexpr ValidityRule kGptOssIsFlex = {
    .name = "gpt_oss_needs_flex_attention",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return is_gpt_oss(job) && job.profile.attention_backend == AttentionBackend::kFlash;
        },
    .explain = [](const Job&, const Plan&) -> std::string {
      return "attention_backend flash: \"gpt-oss only support FlexAttention\" "
             "(models/gpt_oss/model/args.py of torchtitan v0.2.2); valid: auto or flex, which are "
             "the same";
    }};

// Without FSDP autocast runs layers of bf16 parameters on an fp32 residual stream, which no trace
// has shown.
inline constexpr ValidityRule kGptOssSharded = {
    .name = "unsupported: GPT-OSS without FSDP",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job, const Plan& plan) { return is_gpt_oss(job) && plan.zero != 3; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "GPT-OSS under zero", number_text(plan.zero),
                              "3, over two shards or more");
        }};

}  // namespace shardplan::torchtitan
