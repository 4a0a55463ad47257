// What Megatron-LM core_v0.16.1 with Transformer Engine accepts, and what of it is modelled.
// Sources: core/transformer/transformer_config.py, core/model_parallel_config.py,
// core/parallel_state.py, core/optimizer/optimizer_config.py, training/arguments.py
// (validate_args); transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py.
#include "estimator/frameworks/megatron/rules.h"

#include "estimator/frameworks/megatron/adapters/rules.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/both_specs_rules.h"
#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/fp8_rules.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/latent_rules.h"
#include "estimator/frameworks/megatron/mixers/hybrid_rules.h"
#include "estimator/frameworks/megatron/mixers/sparse_rules.h"
#include "estimator/frameworks/megatron/overlap_rules.h"
#include "estimator/frameworks/megatron/part_rules.h"
#include "estimator/frameworks/megatron/state_rules.h"
#include "estimator/frameworks/pieces/tower_rule.h"
#include "estimator/frameworks/pieces/unfused_widths.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::megatron {
namespace {

// --- what is modelled ----------------------------------------------------------------------------

// ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP (--use-megatron-fsdp with
// --data-parallel-sharding-strategy optim_grads, optim_grads_params).
constexpr ValidityRule kZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1, 2, 3>;

// --main-params-dtype; bf16 stands for store_param_remainders: the low half of an fp32 master
// beside the bf16 weight.
constexpr ValidityRule kMasterDtype = kOnlyValues<"unsupported: master_dtype", &Plan::master_dtype,
                                                  DType::kFp32, DType::kFp16, DType::kBf16>;
constexpr ValidityRule kExpAvgDtype =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32, DType::kFp16,
                DType::kBf16, DType::kFp8>;
constexpr ValidityRule kExpAvgSqDtype =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32,
                DType::kFp16, DType::kBf16, DType::kFp8>;

// --- what Megatron-LM refuses --------------------------------------------------------------------

// transformer_config.py: tokens go to the rows of experts that they choose, however many. HybridEP
// pads them as the all-to-all does.
constexpr ValidityRule kDeepEpNeedsNoCapacity = {
    .name = "deepep_needs_no_capacity",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return has_experts(job) && job.profile.moe_dispatcher == MoeDispatcher::kDeepEp &&
                 job.profile.moe_capacity_factor > 0;
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "moe_dispatcher deepep pads no expert to a capacity; valid: moe_capacity_factor 0, "
              "or another moe_dispatcher");
        }};

constexpr ValidityRule kDeepEpRanks = {
    .name = "deepep_serves_the_number_of_ranks",
    .reads = {PlanField::kEp, PlanField::kEtp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && job.profile.moe_dispatcher == MoeDispatcher::kDeepEp &&
                 !deepep_serves(plan.ep * plan.etp);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          std::string served;
          for (const std::int64_t ranks : deepep_ranks()) {
            append_item(served, ", ", number_text(ranks));
          }
          return "moe_dispatcher deepep over ep " + number_text(plan.ep) + " * etp " +
                 number_text(plan.etp) + " ranks; valid: " + served + ", or another moe_dispatcher";
        }};

constexpr ValidityRule kRingNeedsFullAttention = {
    .name = "ring_cp_needs_full_attention",
    .reads = {PlanField::kCp, PlanField::kCpMethod},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && plan.cp_method == CpMethod::kRing &&
                 std::ranges::any_of(job.model.layers, [&](const LayerSpec& layer) {
                   return layer.attention_window > 0 &&
                          layer.attention_window < job.sequence_length;
                 });
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "cp " + number_text(plan.cp) +
                 " with cp_method ring does not support sliding-window layers; valid: cp_method "
                 "a2a, "
                 "all_gather, or cp 1";
        }};

// TransformerEngine pytorch/attention/dot_product_attention/utils.py, get_attention_backend.
constexpr ValidityRule kUnfusedNeedsNoCp = {
    .name = "unfused_attention_needs_cp_1",
    .reads = {PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 && (job.profile.attention_backend == AttentionBackend::kUnfused ||
                                 has_local_layers(job));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "cp " + number_text(plan.cp) + " with attention_backend " +
                 std::string(name_of(job.profile.attention_backend)) +
                 "; valid: cp 1, or attention_backend fused or flash";
        }};

// training/arguments.py, validate_args, wants Transformer Engine for fp8 and for overlapped tensor
// parallelism; core/transformer/moe/experts.py: GroupedMLP is no part of the row tables, nor are
// latent attention and Megatron-FSDP round core's own layers.
constexpr ValidityRule kLocalLayers = {
    .name = "unsupported: attention_backend",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_local_layers(job) &&
                 (plan.precision == Precision::kFp8 || plan.zero > 1 || job.model.is_mla() ||
                  job.profile.tp_overlap != TpOverlap::kExposed ||
                  (has_experts(job) && job.profile.moe_grouped_gemm));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend", "local",
                              "local in bf16 and fp16 with zero 0 or 1, gqa, tp_overlap exposed, "
                              "moe_grouped_gemm false; and other backends");
        }};

// core/model_parallel_config.py, __post_init__. Prediction modules put their logits into the same
// lists, which is not described.
constexpr ValidityRule kDeferredWgrads = {
    .name = "deferred_embedding_wgrads_need_a_pipeline",
    .reads = {PlanField::kPp, PlanField::kZero, PlanField::kGradDtype},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.deferred_embedding_wgrads > 0 &&
                 (plan.pp == 1 || !fuses_weight_gradients(job, plan) ||
                  job.model.num_mtp_layers > 0);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "deferred_embedding_wgrads " + number_text(job.profile.deferred_embedding_wgrads) +
                 " with pp " + number_text(plan.pp) + ", gradient_accumulation_fusion " +
                 std::string(fuses_weight_gradients(job, plan) ? "true" : "false") +
                 " and num_mtp_layers " + number_text(job.model.num_mtp_layers) +
                 "; valid: pp above 1 with gradient_accumulation_fusion true and num_mtp_layers "
                 "0, or deferred_embedding_wgrads 0";
        }};

// Unfused attention, and a mask, hold pairs of positions; the all-gather dispatcher all ranks'
// tokens.
OptionWidths option_widths(const Job& job) {
  const FrameworkProfile& profile = job.profile;
  const bool may_be_unfused = profile.attention_backend == AttentionBackend::kUnfused ||
                              profile.attention_backend == AttentionBackend::kLocal ||
                              may_find_no_kernel(profile) || has_indexers(job);
  const bool gathers = profile.moe_dispatcher == MoeDispatcher::kAllGather;
  return {
      .pairs = pairs_of_token(
          job, (may_be_unfused ? job.model.num_heads : 0) + (profile.attention_mask ? 1 : 0)),
      .gathered = gathers ? static_cast<double>(job.cluster.world_size() * job.model.hidden) : 0};
}

constexpr std::array kRules = {
    kSizesPositive,
    // modelled
    kKnownPartsOrHybrid,
    kZero,
    kPlainOr1F1B,
    kBf16Fp16OrFp8,
    kGradDtype,
    kMasterDtype,
    kExpAvgDtype,
    kExpAvgSqDtype,
    kRankOrder,
    kRecomputePolicyUnsupported,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kMoeBufferFactorUnsupported,
    kAdaptersInBf16,
    kAdaptersBeside,
    kNotByName,
    kTowerOfKnownSizes,
    kQuantizationUnsupported,
    kAdamWOrMuon,
    kMuonAlone,
    kBlockwiseOnHopper,
    kFp8ParamGatherFsdp,
    kLocalLayers,
    kSinkBackends,
    kClampedExpertsOnly,
    kLayerKinds,
    kDecoupledProducts,
    kMixersZero,
    kMixersOptimizer,
    kMixersBackends,
    kHybridParts,
    kLatentZero,
    kLatentBackends,
    kLatentBiases,
    kLatentAdapters,
    kIndexers,
    // accepted
    kAdaptersArePlain,
    kAdaptersOptimizer,
    kAdaptersPrecision,
    kAdaptersRecompute,
    kAdaptersOnWholeModules,
    kAdaptersNeedEtp1,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsAndTp,
    kHeadsByKvHeads,
    kQkvByTp,
    kMtpProjectionByTp,
    kScheduleFitsPipeline,
    kLayersSplitEvenly,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kInterleavedMicrobatches,
    kSpNeedsTp,
    kSequenceByCp,
    kSequenceByTp,
    kFfnByTp,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kExpertFfnByEtp,
    kSharedFfnByTp,
    kWorldByEtpEpPp,
    kMoeNeedsSp,
    kExpertSlicesFollowTp,
    kDeepEpNeedsNoCapacity,
    kDeepEpRanks,
    kA2aHeads,
    kRingNeedsFullAttention,
    kUnfusedNeedsNoCp,
    kSinksHaveNoFlash,
    kSinksNeedA2a,
    kBiasedExpertsNeedEtp1,
    kBiasedExpertsAlone,
    kDeltaNeedsCp1,
    kDeltaHeadsByTp,
    kHybridPrediction,
    kHybridOverlaps,
    kLatentOverlaps,
    kHybridRecompute,
    kHybridVpp,
    kMambaByTp,
    kMambaByCp,
    kIndexerAlone,
    kIndexerCp,
    kIndexerRope,
    kIndexerRecompute,
    kDeferredWgrads,
    kEngineLossNeedsEngine,
    kRegisteredSegments,
    kDpReplicateNeedsZero,
    kDpReplicate,
    kExpertDpReplicate,
    kRecomputeFieldsFitGranularity,
    kRecomputeLayers,
    kRecomputeModulesExist,
    kOverlapParamGather,
    kTpOverlapNeedsSp,
    kLaunchBlockingOverlaps,
    kExpertOverlapNeeds,
    kSharedOverlapNeeds,
    kRouterGraphsNeedExperts,
    kOffloadOptimizerShare,
    kSmallOptimizerNeedsZero,
    kOffloadedIsFp32,
    kFsdpReplicasWithoutExperts,
    kFsdpBuckets,
    kFp8NeedsGpu,
    kMxfp8NeedsGpu,
    kFp8ParamGatherNeedsFp8,
    kDelayedScalingRecomputes,
    kFp8ParamGatherNeedsZero,
    kFp8ParamGatherMain,
    kFp8ParamGatherOffload,
    kFp8Tokens,
    kFp8Widths,
    kMixerFp8Widths,
    kMicrobatchTooLargeWith<option_widths>,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kRules;
}

}  // namespace shardplan::megatron
