// What Megatron-LM core_v0.16.1 with Transformer Engine accepts, and what of it is modelled.
// Sources: core/transformer/transformer_config.py, core/model_parallel_config.py,
// core/parallel_state.py, core/optimizer/optimizer_config.py, training/arguments.py
// (validate_args); transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py.
#include "estimator/frameworks/megatron/rules.h"

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/fp8_rules.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/overlap_rules.h"
#include "estimator/frameworks/megatron/state_rules.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan {
namespace {

// --- what is modelled ----------------------------------------------------------------------------

// ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP (--use-megatron-fsdp with
// --data-parallel-sharding-strategy optim_grads, optim_grads_params).
constexpr ValidityRule kZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1, 2, 3>;

// fp32, or the type that computes (--grad-reduce-in-bf16; fp16 without fp32 accumulation).
constexpr bool is_gradient_dtype(Precision precision, DType dtype) {
  return dtype == DType::kFp32 ||
         dtype == (precision == Precision::kFp16 ? DType::kFp16 : DType::kBf16);
}

constexpr ValidityRule kGradDtype = {
    .name = "unsupported: grad_dtype",
    .reads = {PlanField::kPrecision, PlanField::kGradDtype},
    .broken = [](const Job&,
                 const Plan& plan) { return !is_gradient_dtype(plan.precision, plan.grad_dtype); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "grad_dtype", name_of(plan.grad_dtype),
                              plan.precision == Precision::kFp16 ? "fp32, fp16" : "fp32, bf16");
        }};

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

// tp-cp-ep-dp-pp, or with --use-tp-pp-dp-mapping tp-cp-ep-pp-dp; here slowest first.
const RankOrder kDefaultOrder = Plan{}.rank_order;
constexpr RankOrder kTpPpDpOrder = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};

constexpr ValidityRule kRankOrder = {
    .name = "unsupported: rank_order",
    .reads = {PlanField::kRankOrder},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.rank_order != kDefaultOrder && plan.rank_order != kTpPpDpOrder;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(
              job, "rank_order", rank_order_text(plan.rank_order),
              rank_order_text(kDefaultOrder) + " or " + rank_order_text(kTpPpDpOrder));
        }};

// --- what Megatron-LM refuses --------------------------------------------------------------------

// The fused qkv weight is cut into tp equal parts even where kv heads are fewer than tp ranks.
constexpr ValidityRule kQkvByTp = {
    .name = "qkv_width_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const ModelSpec& model = job.model;
          return model.attention == AttentionKind::kGqa &&
                 2 * model.num_kv_heads * model.head_dim % plan.tp != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("2 * num_kv_heads * head_dim",
                               2 * job.model.num_kv_heads * job.model.head_dim, "tp", plan.tp);
        }};

// core/transformer/moe/moe_layer.py, forward.
constexpr ValidityRule kMoeNeedsSp = {
    .name = "experts_with_tp_need_sequence_parallel",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.tp > 1 && !plan.sequence_parallel;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_experts " + number_text(job.model.moe.num_experts) + " with tp " +
                 number_text(plan.tp) +
                 " needs sequence_parallel; valid: sequence_parallel true, or tp 1";
        }};

// core/distributed/distributed_data_parallel.py: without expert parallelism the gradients of
// experts are reduced with the dense ones, over ranks of one tp index (see expert_state_shards in
// job.h). Where etp is not tp these hold other slices of the experts, or not all that hold the
// same. With one data-parallel rank there is no reduction, and runs of it were measured.
constexpr ValidityRule kExpertSlicesFollowTp = {
    .name = "experts_without_ep_are_sliced_as_tp",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kEp, PlanField::kEtp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.ep == 1 && plan.etp != plan.tp &&
                 dp_of(job, plan) * plan.cp > 1;
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "ep 1 with etp " + number_text(plan.etp) + " and tp " + number_text(plan.tp) +
                 ": gradients of experts would be reduced over the dense data-parallel ranks, "
                 "which hold other slices; valid: etp " +
                 number_text(plan.tp) + ", or ep above 1";
        }};

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

constexpr std::array kRules = {
    kSizesPositive,
    // modelled
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
    kTrainsAll,
    kAdamWOrMuon,
    kMuonAlone,
    kBlockwiseOnHopper,
    kFp8ParamGatherFsdp,
    kLocalLayers,
    // accepted
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
    kDeferredWgrads,
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
    kOffloadOptimizerShare,
    kSmallOptimizerNeedsZero,
    kOffloadedIsFp32,
    kFsdpReplicasWithoutExperts,
    kFsdpBuckets,
    kFp8NeedsGpu,
    kMxfp8NeedsGpu,
    kFp8ParamGatherNeedsFp8,
    kFp8ParamGatherNeedsZero,
    kFp8ParamGatherMain,
    kFp8ParamGatherOffload,
    kFp8Tokens,
    kFp8Widths,
    kMicrobatchTooLarge,
};

// --- the local layer spec
// -------------------------------------------------------------------------

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
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> megatron_validity_rules() {
  return kRules;
}

std::span<const ValidityRule> megatron_local_validity_rules() {
  return kLocalRules;
}

}  // namespace shardplan
