// What nanotron and DeepSpeed accept, and what of it is modelled. Sources: nanotron
// config/parallelism_config.py, models/llama.py, parallel/pipeline_parallel/engine.py
// (OneForwardOneBackwardPipelineEngine); DeepSpeed runtime/config.py, runtime/zero/config.py.
#include "estimator/plan/layer_partition.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/profiles.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan {
namespace {

constexpr ValidityRule kZero01 = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1>;
constexpr ValidityRule kZero123 = kOnlyValues<"unsupported: zero", &Plan::zero, 1, 2, 3>;
constexpr ValidityRule kBf16 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16>;
constexpr ValidityRule kBf16OrFp16 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16>;
constexpr ValidityRule kFp32Gradients =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kFp32>;
constexpr ValidityRule kBf16Gradients =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kBf16, DType::kFp16>;
constexpr ValidityRule kFp32ExpAvg =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32>;
constexpr ValidityRule kFp32ExpAvgSq =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32>;
constexpr ValidityRule kPlain1F1BOrGpipe =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone, Schedule::k1F1B,
                Schedule::kGpipe>;
constexpr ValidityRule kPlainOnly =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone>;
constexpr ValidityRule kNoVpp = kOnlyValues<"unsupported: vpp", &Plan::vpp, 1>;
constexpr ValidityRule kNoCp = kOnlyValues<"unsupported: cp", &Plan::cp, 1>;
constexpr ValidityRule kNoEp = kOnlyValues<"unsupported: ep", &Plan::ep, 1>;
constexpr ValidityRule kNoEtp = kOnlyValues<"unsupported: etp", &Plan::etp, 1>;
constexpr ValidityRule kNoTp = kOnlyValues<"unsupported: tp", &Plan::tp, 1>;
constexpr ValidityRule kNoPp = kOnlyValues<"unsupported: pp", &Plan::pp, 1>;
constexpr ValidityRule kNoReplicas =
    kOnlyValues<"unsupported: dp_replicate", &Plan::dp_replicate, 1>;
constexpr ValidityRule kNoMtp =
    kOnlyValues<"unsupported: model.num_mtp_layers", &ModelSpec::num_mtp_layers, 0>;
constexpr ValidityRule kGqaOnly = {
    .name = "unsupported: model.attention",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return job.model.attention != AttentionKind::kGqa; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "model.attention", "mla", "gqa"); }};
constexpr ValidityRule kGatedOnly =
    kOnlyValues<"unsupported: model.gated_ffn", &ModelSpec::gated_ffn, true>;
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
constexpr ValidityRule kTwoNorms =
    kOnlyValues<"unsupported: model.norms_per_layer", &ModelSpec::norms_per_layer, 2>;

constexpr ValidityRule kNoExperts = {
    .name = "unsupported: model.num_experts",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return has_experts(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.num_experts", number_text(job.model.moe.num_experts),
                              "0");
        }};

// nanotron recompute_layer: every layer by itself. Hugging Face gradient checkpointing: likewise.
constexpr ValidityRule kRecomputeByLayer = {
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

// DeepSpeedZeroConfig.offload_ratio_check.
constexpr ValidityRule kPartialOffload = {
    .name = "partial_offload_needs_zero_3",
    .reads = {PlanField::kZero, PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.zero < 3 && plan.offload.optimizer > 0 && plan.offload.optimizer < 1;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "offload.optimizer " + number_text(plan.offload.optimizer) + " with zero " +
                 number_text(plan.zero) + "; valid: 0 or 1, or zero 3";
        }};

// DeepSpeedZeroOffloadParamConfig.
constexpr ValidityRule kOffloadParametersNeedZero3 = {
    .name = "offloaded_parameters_need_zero_3",
    .reads = {PlanField::kZero, PlanField::kOffload},
    .broken = [](const Job&, const Plan& plan) { return plan.zero < 3 && plan.offload.parameters; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "offload.parameters with zero " + number_text(plan.zero) +
                 "; valid: zero 3, or offload.parameters false";
        }};

constexpr std::array kDeepspeedRules = {
    kSizesPositive,
    // modelled
    kZero123,
    kPlainOnly,
    kBf16OrFp16,
    kBf16Gradients,
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
    kNoExperts,
    kGqaOnly,
    kGatedOnly,
    kTwoNorms,
    kNoMtp,
    kOffloadActivationsUnsupported,
    kMoeBufferFactorUnsupported,
    kTrainsAll,
    kAdamWOnly,
    kLayerNormUnsupported,
    kLearnedPositionsUnsupported,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    // accepted
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByKvHeads,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kSpNeedsTp,
    kOffloadOptimizerShare,
    kPartialOffload,
    kOffloadParametersNeedZero3,
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> nanotron_validity_rules() {
  return kNanotronRules;
}
std::span<const ValidityRule> deepspeed_validity_rules() {
  return kDeepspeedRules;
}

}  // namespace shardplan
