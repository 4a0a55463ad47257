// What models of layers with one part each ask of a plan under Megatron-LM core_v0.16.1.
// Sources: core/ssm/mamba_block.py, MambaStack; core/ssm/mamba_mixer.py, MambaMixer;
// core/models/mamba/{mamba_model,mamba_layer_specs}.py.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/plan/model_parts.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// Parts that Transformer Engine's layers have besides those of the layout: MambaModel's,
// squared_relu and experts of projected tokens (moe_latent_size), of nemotron_h; and the indexer of
// deepseek_v32.
inline constexpr ModelParts kHybridModelParts = {ModelPart::kMamba2, ModelPart::kSingleParts,
                                                 ModelPart::kReluSquared, ModelPart::kLatentExperts,
                                                 ModelPart::kIndexer};
inline std::optional<ModelPart> unknown_part(const Job& job) {
  return missing_part(job.model, job.profile.layout.model_parts | kHybridModelParts);
}
inline constexpr ValidityRule kKnownPartsOrHybrid = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return unknown_part(job).has_value(); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.layers",
              std::string(name_of(*unknown_part(job))) + " (" + job.model.family + ")",
              "models without");
        }};

// mamba_stack_spec: Mamba-2 without projection biases, with a biased convolution and a gated norm,
// beside grouped-query attention, FFNs and experts, each a layer of its own.
inline bool has_undescribed_parts(const ModelSpec& model, const LayerSpec& layer) {
  const MambaSpec& mamba = model.mamba;
  const bool is_mamba = layer.mixer == MixerKind::kMamba2;
  return is_mamba &&
         (layer.has_ffn || mamba.projection_bias || !mamba.convolution_bias || !mamba.gated_norm);
}
inline constexpr ValidityRule kHybridParts = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const ModelSpec& model = job.model;
          return std::ranges::any_of(
                     model.layers,
                     [&](const LayerSpec& layer) { return has_undescribed_parts(model, layer); }) ||
                 (is_hybrid(job) &&
                  (model.is_mla() || model.attention_gate != AttentionGate::kNone));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "model.layers", "Mamba-2 (" + job.model.family + ")",
              "as MambaModel has it: layers of one part, a biased convolution, a gated norm, no "
              "projection biases, grouped-query attention");
        }};

// core/models/mamba/mamba_model.py builds an embedding, a stack and an output layer, whatever
// mtp_num_layers says; modules of hybrids came with later releases.
inline constexpr ValidityRule kHybridPrediction = {
    .name = "hybrids_predict_one_token",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.model.num_mtp_layers > 0 && is_hybrid(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return "num_mtp_layers " + number_text(job.model.num_mtp_layers) +
                 " with layers of one part (" + job.model.family +
                 "), which core_v0.16.1's MambaModel trains without modules of prediction; valid: "
                 "0";
        }};

// core/ssm/mamba_context_parallel.py, __init__: heads are divided over the ranks of a group, and
// groups of heads too, or copied to as many ranks each.
inline constexpr ValidityRule kMambaByCp = {
    .name = "mamba_heads_divisible_by_tp_cp",
    .reads = {PlanField::kTp, PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const MambaSpec& mamba = job.model.mamba;
          const std::int64_t heads = mamba.num_heads / plan.tp;
          const std::int64_t groups = std::max<std::int64_t>(1, mamba.groups / plan.tp);
          const bool fit = groups < plan.cp ? plan.cp % groups == 0 : groups % plan.cp == 0;
          return plan.cp > 1 && is_hybrid(job) && mamba.num_heads > 0 &&
                 (heads % plan.cp != 0 || !fit);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const MambaSpec& mamba = job.model.mamba;
          return "cp " + number_text(plan.cp) + " with mamba.num_heads " +
                 number_text(mamba.num_heads) + " and mamba.groups " + number_text(mamba.groups) +
                 " over tp " + number_text(plan.tp) +
                 "; valid: a cp that divides both of a rank, or is a multiple of its groups";
        }};

// core/pipeline_parallel/combined_1f1b.py takes GPT models; pieces beside userbuffers and deferred
// gradients of the head are not described.
inline constexpr ValidityRule kHybridOverlaps = {
    .name = "hybrids_need_exposed_communication",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const FrameworkProfile& profile = job.profile;
          return is_hybrid(job) && (profile.overlap_moe_expert_parallel_comm ||
                                    profile.tp_overlap != TpOverlap::kExposed ||
                                    profile.deferred_embedding_wgrads > 0);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "layers of one part (" + job.model.family +
                 ") with overlap_moe_expert_parallel_comm, tp_overlap or deferred_embedding_wgrads "
                 "are not described; valid: false, exposed and 0";
        }};

// MambaStack.forward calls every layer as it is, whatever recompute_granularity says.
inline constexpr ValidityRule kHybridRecompute = {
    .name = "hybrids_replay_no_layers",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.recompute.granularity == RecomputeGranularity::kFull && is_hybrid(job);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "recompute full with layers of one part (" + job.model.family +
                 "), which core_v0.16.1's MambaStack does not replay; valid: none, selective";
        }};

// MambaStack._select_layers_for_pipeline_parallel.
inline constexpr ValidityRule kHybridVpp = {
    .name = "hybrids_need_vpp_1",
    .reads = {PlanField::kVpp},
    .broken = [](const Job& job, const Plan& plan) { return plan.vpp > 1 && is_hybrid(job); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "vpp " + number_text(plan.vpp) + " with layers of one part (" + job.model.family +
                 "), which core_v0.16.1's MambaStack does not divide so; valid: vpp 1";
        }};

// MambaMixer.__init__.
inline constexpr ValidityRule kMambaByTp = {
    .name = "mamba_groups_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const MambaSpec& mamba = job.model.mamba;
          return (mamba.groups % plan.tp != 0 || mamba.num_heads % plan.tp != 0) &&
                 is_hybrid(job) && mamba.num_heads > 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const MambaSpec& mamba = job.model.mamba;
          return mamba.groups % plan.tp != 0
                     ? not_divisible("mamba.groups", mamba.groups, "tp", plan.tp)
                     : not_divisible("mamba.num_heads", mamba.num_heads, "tp", plan.tp);
        }};

}  // namespace shardplan::megatron
