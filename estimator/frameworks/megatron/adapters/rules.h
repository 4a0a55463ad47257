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
    .broken =
        [](const Job& job, const Plan&) {
          return trains_adapters(job) &&
                 (job.adapters.decomposes_weights || job.adapters.kind != AdapterKind::kLora);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return job.adapters.decomposes_weights
                     ? std::string(
                           "DoRA, which adapters on Megatron-core's layers refuse; valid: dora "
                           "false")
                     : "adapters of kind " + std::string(name_of(job.adapters.kind)) +
                           ", which Megatron-core's layers have none of; valid: lora";
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
  return has_local_layers(job) || (job.model.tied_embeddings && trains_ends) ||
         (has_experts(job) && !job.profile.moe_grouped_gemm) ||
         job.profile.overlap_moe_expert_parallel_comm ||
         job.profile.deferred_embedding_wgrads > 0 ||
         job.profile.tp_overlap != TpOverlap::kExposed || uses_muon(job);
}
inline constexpr ValidityRule kAdaptersBeside = {
    .name = "unsupported: trained",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return trains_adapters(job) && has_undescribed_model(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "trained", name_of(trained_parameters(job)),
              "adapters with layers of Transformer Engine, grouped experts, "
              "tp_overlap exposed and AdamW, without overlap_moe_expert_parallel_comm, deferred "
              "gradients and trained copies of tied tables; or all parameters");
        }};

// What is described of optimizers reads together what Megatron's other rules of them read.
inline constexpr ValidityRule kAdaptersOptimizer = {
    .name = "adapters_need_a_plain_optimizer",
    .reads = {PlanField::kZero, PlanField::kMasterDtype, PlanField::kExpAvgDtype,
              PlanField::kExpAvgSqDtype, PlanField::kOffload},
    .broken =
        [](const Job& job, const Plan& plan) {
          return trains_adapters(job) &&
                 (plan.zero > 1 || is_precision_aware(plan) || plan.offload.optimizer > 0);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "adapters with zero " + number_text(plan.zero) + ", master_dtype " +
                 std::string(name_of(plan.master_dtype)) + ", exp_avg_dtype " +
                 std::string(name_of(plan.exp_avg_dtype)) + ", exp_avg_sq_dtype " +
                 std::string(name_of(plan.exp_avg_sq_dtype)) + ", offload.optimizer " +
                 number_text(plan.offload.optimizer) +
                 " are not described; valid: zero 0 or 1, all fp32, offload.optimizer 0";
        }};

inline constexpr ValidityRule kAdaptersPrecision = {
    .name = "adapters_need_bf16",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return trains_adapters(job) && plan.precision != Precision::kBf16;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "adapters with precision " + std::string(name_of(plan.precision)) +
                 " are not described; valid: bf16";
        }};

inline constexpr ValidityRule kAdaptersRecompute = {
    .name = "adapters_replay_core_attention_or_layers",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          const RecomputeModules core_attention = {.core_attn = plan.recompute.modules.core_attn};
          return trains_adapters(job) && plan.recompute.modules != core_attention;
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "adapters with other modules recomputed than core_attn are not described; valid: "
              "recompute none, full, or selective of core_attn");
        }};

}  // namespace shardplan::megatron
