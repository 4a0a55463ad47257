// What nanotron accepts, and what of it is modelled. Sources: nanotron
// config/parallelism_config.py, models/llama.py, parallel/pipeline_parallel/engine.py
// (OneForwardOneBackwardPipelineEngine).
#include "estimator/frameworks/nanotron/rules.h"

#include <array>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::nanotron {
namespace {

constexpr ValidityRule kZero01 = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1>;
constexpr ValidityRule kBf16 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16>;
constexpr ValidityRule kFp32Gradients =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kFp32>;
constexpr ValidityRule kPlain1F1BOrGpipe =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone, Schedule::k1F1B,
                Schedule::kGpipe>;

// models/llama.py and models/qwen.py (Qwen 2) at both commits that are modelled.
constexpr ValidityRule kNoQkNorm = {
    .name = "unsupported: model.qk_norm",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.qk_norm; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.qk_norm", "true",
                              "false, as no model of nanotron norms queries and keys");
        }};

// engine.py: the assertion of OneForwardOneBackwardPipelineEngine.train_batch_iter.
constexpr ValidityRule kEnoughMicrobatches = {
    .name = "1f1b_needs_pp_minus_1_microbatches",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kMicroBatch,
              PlanField::kSchedule},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.schedule == Schedule::k1F1B && microbatches_of(job, plan) < plan.pp - 1;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "schedule 1f1b with pp " + number_text(plan.pp) + " and " +
                 number_text(microbatches_of(job, plan)) + " microbatches; valid: at least " +
                 number_text(plan.pp - 1);
        }};

// models/base.py, build_model: every block is given to a rank by what it costs.
constexpr ValidityRule kLayersByCost = {
    .name = "unsupported: layers_per_chunk",
    .reads = {PlanField::kLayersPerChunk},
    .broken = [](const Job&, const Plan& plan) { return !plan.layers_per_chunk.empty(); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "layers_per_chunk", "a list",
                              "none, as nanotron deals layers by their cost");
        }};

constexpr ValidityRule kLossOnLastStage = {
    .name = "loss_on_last_stage",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
    .broken = [](const Job& job, const Plan& plan) { return layers_per_chunk(job, plan).empty(); },
    .explain = explain_loss_on_last_stage};

constexpr std::array kNanotronRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kZero01,
    kPlain1F1BOrGpipe,
    kBf16,
    kFp32Gradients,
    kMasterFp32Only,
    kFp32ExpAvg,
    kFp32ExpAvgSq,
    kRecomputeByLayer,
    kNoVpp,
    kNoCp,
    kNoEp,
    kNoEtp,
    kNoReplicas,
    kNoExperts,
    kGqaOnly,
    kGatedOnly,
    kNoQkNorm,
    kHeadDimFromHidden,
    kTwoNorms,
    kNoMtp,
    kLayersByCost,
    kOffloadOptimizerUnsupported,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kMoeBufferFactorUnsupported,
    kTrainsAll,
    kQuantizationUnsupported,
    kAdamWOnly,
    kLayerNormUnsupported,
    kLearnedPositionsUnsupported,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    // accepted
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsByTp,
    kHeadsByKvHeads,
    kScheduleFitsPipeline,
    kLossOnLastStage,
    kDpMatchesWorld,
    kGlobalBatch,
    kEnoughMicrobatches,
    kSpNeedsTp,
    kSequenceByTp,
    kFfnByTp,
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kNanotronRules;
}

}  // namespace shardplan::nanotron
