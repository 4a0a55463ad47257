// What DeepSpeed accepts, and what of it is modelled. Sources: DeepSpeed runtime/config.py,
// runtime/zero/config.py.
#include "estimator/frameworks/deepspeed/rules.h"

#include <array>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::deepspeed {
namespace {

constexpr ValidityRule kZero123 = kOnlyValues<"unsupported: zero", &Plan::zero, 1, 2, 3>;
constexpr ValidityRule kBf16OrFp16 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16>;
constexpr ValidityRule kBf16Gradients =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kBf16, DType::kFp16>;
constexpr ValidityRule kPlainOnly =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone>;
constexpr ValidityRule kNoTp = kOnlyValues<"unsupported: tp", &Plan::tp, 1>;
constexpr ValidityRule kNoPp = kOnlyValues<"unsupported: pp", &Plan::pp, 1>;

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
    kQuantizationUnsupported,
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

std::span<const ValidityRule> validity_rules() {
  return kDeepspeedRules;
}

}  // namespace shardplan::deepspeed
