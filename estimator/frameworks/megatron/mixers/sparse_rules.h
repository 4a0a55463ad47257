// What attention over chosen keys asks of a plan under Megatron-LM core_v0.16.1.
// Sources: core/transformer/transformer_config.py, __post_init__; core/models/gpt/
// experimental_attention_variant_module_specs.py, get_dsa_module_spec_for_backend;
// core/transformer/multi_latent_attention.py, forward.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

// "an indexer (deepseek_v32)"
inline std::string indexer_text(const Job& job) {
  return "an indexer (" + job.model.family + ")";
}

// Every layer has one, of latent attention with compressed queries, that chooses keys one by one.
inline constexpr ValidityRule kIndexers = {
    .name = "unsupported: model.layers",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const ModelSpec& model = job.model;
          return has_indexers(job) &&
                 (!model.is_mla() || model.mla.q_lora_rank == 0 || model.indexer.block_size > 1 ||
                  !std::ranges::all_of(model.layers, &LayerSpec::has_indexer));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.layers", indexer_text(job),
                              "indexers of single keys in every layer, beside latent attention "
                              "with compressed queries");
        }};

inline constexpr ValidityRule kIndexerAlone = {
    .name = "indexers_stand_alone",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          const FrameworkProfile& profile = job.profile;
          return has_indexers(job) &&
                 (plan.precision == Precision::kFp8 || plan.zero > 1 || uses_muon(job) ||
                  trains_adapters(job) || has_local_layers(job) ||
                  profile.overlap_moe_expert_parallel_comm ||
                  profile.tp_overlap != TpOverlap::kExposed || profile.deterministic_attention);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return indexer_text(job) +
                 " with fp8, zero above 1, adapters, another optimizer than adamw, local or "
                 "deterministic attention, or overlapped exchanges is not described; valid: bf16, "
                 "zero 0 or 1, adamw, tp_overlap exposed";
        }};

inline constexpr ValidityRule kIndexerCp = {
    .name = "indexers_need_cp_1",
    .reads = {PlanField::kCp},
    .broken = [](const Job& job, const Plan& plan) { return plan.cp > 1 && has_indexers(job); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "cp " + number_text(plan.cp) + " with " + indexer_text(job) + "; valid: cp 1";
        }};

inline constexpr ValidityRule kIndexerRope = {
    .name = "indexers_need_plain_rotary_kernels",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.profile.rope_fusion && has_indexers(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return "rope_fusion true with " + indexer_text(job) + "; valid: rope_fusion false";
        }};

// A checkpoint around core attention hands on no hidden states.
inline constexpr ValidityRule kIndexerRecompute = {
    .name = "indexers_replay_layers",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const RecomputeModules& modules = plan.recompute.modules;
          return plan.recompute.granularity == RecomputeGranularity::kSelective &&
                 (modules.core_attn || modules.mla_up_proj || modules.layernorm) &&
                 has_indexers(job);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "core_attn, mla_up_proj or layernorm recomputed with " + indexer_text(job) +
                 "; valid: full, none, or other modules";
        }};

}  // namespace shardplan::megatron
