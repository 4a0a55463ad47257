// Which adapters Megatron-SWIFT puts on Megatron-core's linear layers, and what of it is described.
// Source: mcore-bridge f020e47 src/mcore_bridge/tuners/lora.py, LoraParallelLinear.
#pragma once

#include <string>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::megatron {

// linear_qkv has queries, keys and values, linear_fc1 gate and up.
inline constexpr ValidityRule kAdaptersOnWholeModules = {
    .name = "adapters_on_whole_modules",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const Adapters& adapters = job.adapters;
          const bool parts_qkv =
              adapters.is_on(LinearLayer::kQuery) != adapters.is_on(LinearLayer::kKey) ||
              adapters.is_on(LinearLayer::kQuery) != adapters.is_on(LinearLayer::kValue);
          const bool parts_fc1 =
              adapters.is_on(LinearLayer::kGate) != adapters.is_on(LinearLayer::kUp);
          return trains_adapters(job) && (parts_qkv || parts_fc1);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "adapters on a part of q_proj, k_proj and v_proj, which are one module, linear_qkv, "
              "or of gate_proj and up_proj, which are linear_fc1; valid: on all of them, or on "
              "none");
        }};

// LoraParallelLinear.__init__: a ValueError for either.
inline constexpr ValidityRule kAdaptersArePlain = {
    .name = "adapters_are_plain",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return trains_adapters(job) && job.adapters.decomposes_weights; },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "DoRA, which adapters on Megatron-core's layers refuse; valid: dora "
              "false");
        }};
inline constexpr ValidityRule kAdaptersNeedEtp1 = {
    .name = "adapters_need_etp_1",
    .reads = {PlanField::kEtp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return trains_adapters(job) && has_experts(job) && plan.etp > 1 &&
                 (adapts_fc1(job) || adapts_fc2(job));
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "adapters on experts with etp " + number_text(plan.etp) + "; valid: etp 1";
        }};

// Float16Module makes adapters bf16, whatever type peft gave them.
inline constexpr ValidityRule kAdaptersInBf16 = {
    .name = "unsupported: adapters.dtype",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return trains_adapters(job) && job.adapters.dtype != DType::kBf16;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "adapters.dtype", name_of(job.adapters.dtype),
                              "bf16 (--lora-dtype bf16), which Megatron-core's wrapper makes them");
        }};

// What keeps or makes more than adapters' own tensors and was not described beside them.
inline bool has_undescribed_model(const Job& job) {
  const bool trains_ends = job.adapters.trains_table || job.adapters.trains_head;
  return job.model.is_mla() || has_local_layers(job) ||
         (job.model.tied_embeddings && trains_ends) ||
         (has_experts(job) && !job.profile.moe_grouped_gemm) ||
         job.profile.overlap_moe_expert_parallel_comm ||
         job.profile.deferred_embedding_wgrads > 0 ||
         job.profile.tp_overlap != TpOverlap::kExposed || uses_muon(job);
}
inline constexpr ValidityRule kAdaptersBeside = {
    .name = "unsupported: trained",
    .reads = {PlanField::kZero, PlanField::kPrecision, PlanField::kMasterDtype,
              PlanField::kExpAvgDtype, PlanField::kExpAvgSqDtype, PlanField::kOffload,
              PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const RecomputeModules core_attention = {.core_attn = plan.recompute.modules.core_attn};
          return trains_adapters(job) &&
                 (plan.zero > 1 || plan.precision != Precision::kBf16 || is_precision_aware(plan) ||
                  plan.offload.optimizer > 0 || plan.recompute.modules != core_attention ||
                  has_undescribed_model(job));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "trained", name_of(trained_parameters(job)),
              "adapters in bf16 with zero 0 or 1, AdamW in fp32 on the GPU, recompute none, full "
              "or of core_attn, grouped-query attention of Transformer Engine, grouped experts, "
              "tp_overlap exposed, without overlap_moe_expert_parallel_comm and deferred "
              "gradients, "
              "trained copies of tables that are not tied; or all parameters");
        }};

}  // namespace shardplan::megatron
