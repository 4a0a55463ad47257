#include "estimator/frameworks/megatron/local_rules.h"

#include "estimator/frameworks/megatron/both_specs_rules.h"
#include "estimator/frameworks/megatron/state_rules.h"
#include "estimator/frameworks/pieces/unfused_widths.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::megatron {
namespace {

constexpr ValidityRule kLocalZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1>;
constexpr ValidityRule kLocalPrecision =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16>;
// core/transformer/dot_product_attention.py: only TEDotProductAttention knows context parallelism.
constexpr ValidityRule kLocalCp = kOnlyValues<"unsupported: cp", &Plan::cp, 1>;
constexpr ValidityRule kLocalAttention = {
    .name = "unsupported: model.attention",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.is_mla(); },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "model.attention", "mla", "gqa"); }};
constexpr ValidityRule kLocalNorms =
    kOnlyValues<"unsupported: model.norms_per_layer", &ModelSpec::norms_per_layer, 2>;
constexpr ValidityRule kLocalMtp =
    kOnlyValues<"unsupported: model.num_mtp_layers", &ModelSpec::num_mtp_layers, 0>;
constexpr ValidityRule kLocalExpAvg =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32>;
constexpr ValidityRule kLocalExpAvgSq =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32>;

// core/transformer/moe/experts.py: SequentialMLP recomputes no activation alone.
constexpr ValidityRule kLocalRecompute = {
    .name = "unsupported: recompute.modules",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.recompute.modules.moe_act || plan.recompute.modules.mla_up_proj;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "recompute.modules",
                              plan.recompute.modules.moe_act ? "moe_act" : "mla_up_proj",
                              "core_attn, layernorm, mlp, moe, shared_experts");
        }};

constexpr std::array kLocalRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kLocalZero,
    kPlainOr1F1B,
    kLocalPrecision,
    kLocalCp,
    kLocalAttention,
    kFusedHeadDim,
    kLocalNorms,
    kLocalMtp,
    kGradDtype,
    kMasterFp32Only,
    kLocalExpAvg,
    kLocalExpAvgSq,
    kRankOrder,
    kLocalRecompute,
    kRecomputePolicyUnsupported,
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
    kAdamWOrMuon,
    kMuonAlone,
    // accepted
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsAndTp,
    kHeadsByKvHeads,
    kQkvByTp,
    kScheduleFitsPipeline,
    kLayersSplitEvenly,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kInterleavedMicrobatches,
    kSpNeedsTp,
    kSequenceByTp,
    kFfnByTp,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kExpertFfnByEtp,
    kSharedFfnByTp,
    kWorldByEtpEpPp,
    kMoeNeedsSp,
    kExpertSlicesFollowTp,
    kDpReplicateNeedsZero,
    kDpReplicate,
    kExpertDpReplicate,
    kRecomputeFieldsFitGranularity,
    kRecomputeLayers,
    kRecomputeModulesExist,
    kOverlapParamGather,
    kMicrobatchTooLargeWith<widths_where_deterministic>,
};

}  // namespace

std::span<const ValidityRule> local_validity_rules() {
  return kLocalRules;
}

}  // namespace shardplan::megatron
