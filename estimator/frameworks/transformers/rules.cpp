// What transformers' Trainer accepts, and what of it is modelled. Sources: transformers 5.17
// trainer.py, modeling_utils.py; accelerate 1.15; peft 0.21.
#include "estimator/frameworks/transformers/rules.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/rules.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::transformers {
namespace {

using huggingface::kAdapterRank;
using huggingface::kAdaptersHaveTargets;
using huggingface::kHeadDim;
using huggingface::kNoDora;
using huggingface::kQuantizedNeedsAdapters;
using huggingface::kRoutedExpertsOnly;

// "unsupported: <option>": an option of the profile has none of the values that are modelled.
template <FixedText rule, auto option, auto... values>
constexpr ValidityRule kOnlyOptions = {
    .name = rule.view(),
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return ((job.profile.*option != values) && ...); },
    .explain =
        [](const Job& job, const Plan&) {
          std::string modelled;
          (append_item(modelled, ", ", value_text(values)), ...);
          return not_modelled(job, rule.view().substr(std::string_view("unsupported: ").size()),
                              value_text(job.profile.*option), modelled);
        }};

constexpr ValidityRule kZero023 = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 2, 3>;
constexpr ValidityRule kBf16OrFp32 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp32>;
// No choice of a plan: gradients have the type of their weights.
constexpr ValidityRule kGradientsOfWeights =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kBf16>;
constexpr ValidityRule kPlainOnly =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone>;
constexpr ValidityRule kNoTp = kOnlyValues<"unsupported: tp", &Plan::tp, 1>;
constexpr ValidityRule kNoPp = kOnlyValues<"unsupported: pp", &Plan::pp, 1>;

constexpr ValidityRule kFsdp2 =
    kOnlyOptions<"unsupported: fsdp_version", &FrameworkProfile::fsdp_version, 2>;

constexpr ValidityRule kOptimizers =
    kOnlyValues<"unsupported: optimizer", &Job::optimizer, OptimizerKind::kAdamW,
                OptimizerKind::kSgd, OptimizerKind::kAdafactor, OptimizerKind::kAdamW8bit,
                OptimizerKind::kPagedAdamW, OptimizerKind::kPagedAdamW8bit,
                OptimizerKind::kTorchaoAdamW8bit, OptimizerKind::kTorchaoAdamW4bit>;

// What is modelled of one GPU and DDP alone; `what` names it where the job has it.
template <FixedText rule, std::string (*what)(const Job&)>
constexpr ValidityRule kWholeOnly = {
    .name = rule.view(),
    .reads = {PlanField::kZero},
    .broken = [](const Job& job, const Plan& plan) { return plan.zero > 0 && !what(job).empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, rule.view().substr(std::string_view("unsupported: ").size()),
                              what(job) + " with zero " + number_text(plan.zero), "zero 0");
        }};

std::string own_optimizer(const Job& job) {
  return job.optimizer == OptimizerKind::kAdamW ? "" : std::string(name_of(job.optimizer));
}
std::string own_loss(const Job& job) {
  return job.profile.head_loss == HeadLoss::kStock ? ""
                                                   : std::string(name_of(job.profile.head_loss));
}
std::string reentrance(const Job& job) {
  return job.profile.reentrant_checkpoint ? "true" : "";
}
std::string quantization(const Job& job) {
  return job.quantized.kind == Quantization::kNone ? "" : std::string(name_of(job.quantized.kind));
}
std::string trained_copies(const Job& job) {
  return job.adapters.trains_table || job.adapters.trains_head ? "true" : "";
}
constexpr ValidityRule kOptimizerWhole =
    kWholeOnly<"unsupported: optimizer_of_shards", own_optimizer>;
constexpr ValidityRule kLossWhole = kWholeOnly<"unsupported: head_loss", own_loss>;
constexpr ValidityRule kReentranceWhole =
    kWholeOnly<"unsupported: reentrant_checkpoint", reentrance>;
constexpr ValidityRule kQuantizedWhole = kWholeOnly<"unsupported: quantization", quantization>;
constexpr ValidityRule kCopiesWhole =
    kWholeOnly<"unsupported: adapters.trained_copies", trained_copies>;

constexpr ValidityRule kShardsNeedRanks = {
    .name = "zero_needs_ranks",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.zero > 0 && job.cluster.world_size() == 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "zero " + number_text(plan.zero) +
                 " shards parameters over one GPU; valid: zero 0, or more GPUs";
        }};

// Autocast and FSDP2's policy compute in bf16; without them products are in the weights' type.
constexpr ValidityRule kPrecisionOfWeights = {
    .name = "precision_matches_weights",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp32 &&
                 (job.profile.weights_dtype != DType::kFp32 || plan.zero > 0 ||
                  job.quantized.kind != Quantization::kNone);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "precision fp32 with " +
                 (job.profile.weights_dtype != DType::kFp32
                      ? "weights_dtype " + std::string(name_of(job.profile.weights_dtype))
                  : plan.zero > 0
                      ? "zero " + number_text(plan.zero) + ", whose mixed precision is bf16"
                      : "quantization " + std::string(name_of(job.quantized.kind))) +
                 "; valid: precision bf16, or zero 0 with weights_dtype fp32";
        }};

// Attention in fp32 of fewer key heads than query heads saves its scores (sdp_utils.cpp: the fused
// kernels for fp32 take no enable_gqa), which are not played.
constexpr ValidityRule kFp32NeedsEqualHeads = {
    .name = "unsupported: precision_with_grouped_heads",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp32 &&
                 job.model.num_heads != job.model.num_kv_heads;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "precision_with_grouped_heads",
                              "fp32 with " + number_text(job.model.num_kv_heads) +
                                  " key-value heads of " + number_text(job.model.num_heads),
                              "bf16, or as many");
        }};

constexpr std::array kTransformersRules = {
    kSizesPositive,
    // modelled
    kZero023,
    kPlainOnly,
    kBf16OrFp32,
    kGradientsOfWeights,
    kMasterFp32Only,
    kFp32ExpAvg,
    kFp32ExpAvgSq,
    kRecomputeByLayer,
    kNoTp,
    kNoPp,
    kNoVpp,
    kNoCp,
    kNoEp,
    kNoEtp,
    kNoReplicas,
    kRoutedExpertsOnly,
    kGqaOnly,
    kGatedOnly,
    kTwoNorms,
    kNoMtp,
    kHeadDim,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kOffloadOptimizerUnsupported,
    kMoeBufferFactorUnsupported,
    kOptimizers,
    kOptimizerWhole,
    kLossWhole,
    kReentranceWhole,
    kCopiesWhole,
    kLayerNormUnsupported,
    kLearnedPositionsUnsupported,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    kNoDora,
    kQuantizedWhole,
    kFsdp2,
    // accepted
    kAdapterRank,
    kAdaptersHaveTargets,
    kQuantizedNeedsAdapters,
    kPrecisionOfWeights,
    kRankOrderComplete,
    kWorldByTpCpPp,
    kShardsNeedRanks,
    kHeadsByKvHeads,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kSpNeedsTp,
    kMicrobatchTooLarge,
    kFp32NeedsEqualHeads,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kTransformersRules;
}

}  // namespace shardplan::transformers
