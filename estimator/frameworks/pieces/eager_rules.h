// Validity rules that frameworks share which train by PyTorch's eager layers and shard no model but
// by data, tensor and plain pipeline parallelism.
#pragma once

#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan {

inline constexpr ValidityRule kFp32ExpAvg =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32>;
inline constexpr ValidityRule kFp32ExpAvgSq =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32>;
inline constexpr ValidityRule kNoVpp = kOnlyValues<"unsupported: vpp", &Plan::vpp, 1>;
inline constexpr ValidityRule kNoCp = kOnlyValues<"unsupported: cp", &Plan::cp, 1>;
inline constexpr ValidityRule kNoEp = kOnlyValues<"unsupported: ep", &Plan::ep, 1>;
inline constexpr ValidityRule kNoEtp = kOnlyValues<"unsupported: etp", &Plan::etp, 1>;
inline constexpr ValidityRule kNoReplicas =
    kOnlyValues<"unsupported: dp_replicate", &Plan::dp_replicate, 1>;
inline constexpr ValidityRule kNoMtp =
    kOnlyValues<"unsupported: model.num_mtp_layers", &ModelSpec::num_mtp_layers, 0>;

inline constexpr ValidityRule kGqaOnly = {
    .name = "unsupported: model.attention",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.model.attention != AttentionKind::kGqa; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "model.attention", "mla", "gqa"); }};

inline constexpr ValidityRule kGatedOnly =
    kOnlyValues<"unsupported: model.gated_ffn", &ModelSpec::gated_ffn, true>;
inline constexpr ValidityRule kTwoNorms =
    kOnlyValues<"unsupported: model.norms_per_layer", &ModelSpec::norms_per_layer, 2>;

inline constexpr ValidityRule kNoExperts = {
    .name = "unsupported: model.num_experts",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return has_experts(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.num_experts", number_text(job.model.moe.num_experts),
                              "0");
        }};

// nanotron recompute_layer: every layer by itself. Hugging Face gradient checkpointing: likewise.
inline constexpr ValidityRule kRecomputeByLayer = {
    .name = "unsupported: recompute",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.recompute != Recompute{} &&
                 (plan.recompute.granularity != RecomputeGranularity::kFull ||
                  plan.recompute.method != RecomputeMethod::kUniform ||
                  plan.recompute.num_layers != 1);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "recompute", name_of(plan.recompute.granularity),
                              "none, or full/uniform/1");
        }};

}  // namespace shardplan
