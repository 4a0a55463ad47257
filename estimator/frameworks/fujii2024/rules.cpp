// What the formula of arXiv 2411.06465 covers, and the divisibility that its author's calculator
// (okoge-kaz.github.io static/js/memory-estimator.js) and Megatron-LM, on which the paper measured,
// ask for.
#include "estimator/frameworks/fujii2024/rules.h"

#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::fujii2024 {
namespace {

constexpr ValidityRule kZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1>;
constexpr ValidityRule kGradDtype = kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype,
                                                DType::kFp32, DType::kBf16, DType::kFp16>;
constexpr ValidityRule kExpAvgDtype =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32>;
constexpr ValidityRule kExpAvgSqDtype =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32>;
constexpr ValidityRule kDpReplicateOne =
    kOnlyValues<"unsupported: dp_replicate", &Plan::dp_replicate, 1>;
constexpr ValidityRule kCpMethod =
    kOnlyValues<"unsupported: cp_method", &Plan::cp_method, CpMethod::kRing>;

constexpr ValidityRule kRecompute = {
    .name = "unsupported: recompute",
    .reads = {PlanField::kRecompute},
    .broken = [](const Job&, const Plan& plan) { return plan.recompute != Recompute{}; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "recompute", name_of(plan.recompute.granularity), "none");
        }};

constexpr ValidityRule kLayersPerChunkEven = {
    .name = "unsupported: layers_per_chunk",
    .reads = {PlanField::kLayersPerChunk},
    .broken = [](const Job&, const Plan& plan) { return !plan.layers_per_chunk.empty(); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "layers_per_chunk", "given", "an even split");
        }};

// Every activation is divided by tp.
constexpr ValidityRule kSequenceParallel = {
    .name = "unsupported: sequence_parallel",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken = [](const Job&, const Plan& plan) { return plan.tp > 1 && !plan.sequence_parallel; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "sequence_parallel", "false", "true") + " with tp " +
                 number_text(plan.tp);
        }};

constexpr ValidityRule kAttention = {
    .name = "unsupported: model.attention",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.model.attention != AttentionKind::kGqa; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "model.attention", "mla", "gqa"); }};

// The formula divides experts by tp * ep.
constexpr ValidityRule kEtpIsTp = {
    .name = "etp_equals_tp",
    .reads = {PlanField::kTp, PlanField::kEtp},
    .broken = [](const Job& job,
                 const Plan& plan) { return has_experts(job) && plan.etp != plan.tp; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "etp " + number_text(plan.etp) +
                 ": fujii2024 divides experts by tp * ep; valid etp: " + number_text(plan.tp);
        }};

constexpr ValidityRule kHiddenByTp = {
    .name = "hidden_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job, const Plan& plan) { return job.model.hidden % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("hidden", job.model.hidden, "tp", plan.tp);
        }};

// The calculator's "standalone embedding" option counts embedding and head as a layer each.
constexpr ValidityRule kLayersByPp = {
    .name = "layers_divisible_by_pp",
    .reads = {PlanField::kPp},
    .broken = [](const Job& job, const Plan& plan) { return layer_slots(job) % plan.pp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("num_layers", layer_slots(job), "pp", plan.pp);
        }};

constexpr std::array kRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kZero,
    kPlainOr1F1B,
    kBf16Fp16OrFp8,
    kGradDtype,
    kMasterFp32Only,
    kExpAvgDtype,
    kExpAvgSqDtype,
    kRecompute,
    kDpReplicateOne,
    kLayersPerChunkEven,
    kCpMethod,
    kSequenceParallel,
    kAttention,
    kOffloadOptimizerUnsupported,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kMoeBufferFactorUnsupported,
    kTrainsAll,
    kQuantizationUnsupported,
    kLayerNormUnsupported,
    kLearnedPositionsUnsupported,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    // accepted
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsByTp,
    kHiddenByTp,
    kScheduleFitsPipeline,
    kLayersByPp,
    kLayersSplitEvenly,
    kDpMatchesWorld,
    kGlobalBatch,
    kInterleavedMicrobatches,
    kSpNeedsTp,
    kSequenceByCp,
    kSequenceByTp,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kEtpIsTp,
    kWorldByEtpEpPp,
    kFp8NeedsGpu,
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kRules;
}

}  // namespace shardplan::fujii2024
