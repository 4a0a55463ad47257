// What transformers' Trainer accepts, and what of it is modelled. Sources: transformers 5.17
// trainer.py, modeling_utils.py; accelerate 1.15; peft 0.21.
#include "estimator/frameworks/transformers/rules.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/adapter_rules.h"
#include "estimator/frameworks/pieces/huggingface/kernel_rules.h"
#include "estimator/frameworks/pieces/huggingface/mixers/rules.h"
#include "estimator/frameworks/pieces/huggingface/rules.h"
#include "estimator/frameworks/pieces/huggingface/weights/rules.h"
#include "estimator/frameworks/pieces/tower_rule.h"
#include "estimator/frameworks/transformers/adapter_rules.h"
#include "estimator/frameworks/transformers/objective_rules.h"
#include "estimator/frameworks/transformers/offload_rules.h"
#include "estimator/frameworks/transformers/optimizer_rules.h"
#include "estimator/frameworks/transformers/parallel_rules.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::transformers {
namespace {

using huggingface::kAdapterRank;
using huggingface::kAdaptersHaveTargets;
using huggingface::kFamilies;
using huggingface::kHeadDim;
using huggingface::kQuantizedNeedsAdapters;

constexpr ValidityRule kZero023 = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 2, 3>;
constexpr ValidityRule kHalfOrFp32 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16,
                Precision::kFp32>;
// No choice of a plan: gradients have the type of their weights.
constexpr ValidityRule kGradientsOfWeights =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kBf16>;
constexpr ValidityRule kPlainOnly =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone>;
constexpr ValidityRule kNoPp = kOnlyValues<"unsupported: pp", &Plan::pp, 1>;

// A parameter of integers cannot be made (torch/nn/parameter.py); accelerate leaves 4-bit weights
// in bytes out of FSDP2 since 1.14, before which their ends are the root's. FSDP1 flattens
// parameters of one type alone (torch/distributed/fsdp/_flat_param.py
// _validate_tensors_to_flatten). axolotl, which alone quantizes experts, has FSDP2 shard integers
// (067b021 monkeypatch/fsdp2_qlora.py, monkeypatch/accelerate/fsdp2_quantized.py).
std::string unshardable_weights(const Job& job) {
  if (job.profile.quantizes_experts && job.profile.fsdp_version == 2) {
    return "";
  }
  const bool leaves_out =
      job.profile.fsdp_version == 2 && (job.profile.fsdp_ends == FsdpEnds::kTail ||
                                        job.profile.fsdp_ends == FsdpEnds::kTailWithHead);
  if (job.quantized.kind == Quantization::kInt8) {
    return "nf4 or fp4";
  }
  const bool is_refused =
      is_4bit(job.quantized.kind) && !job.profile.float_quant_storage && !leaves_out;
  return is_refused ? "float_quant_storage true" : "";
}
constexpr ValidityRule kShardsOfFloats = {
    .name = "shards_are_of_floats",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.zero > 0 && !unshardable_weights(job).empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "quantization " + std::string(name_of(job.quantized.kind)) + " with zero " +
                 number_text(plan.zero) +
                 ": FSDP shards no integers; valid: " + unshardable_weights(job) + ", or zero 0";
        }};
constexpr ValidityRule kFlatOfOneType = {
    .name = "flat_parameters_have_one_type",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return is_fsdp(job, plan, 1) && job.profile.wide_ends; },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "wide_ends with fsdp_version 1, which flattens parameters of one type alone; valid: "
              "wide_ends false, or fsdp_version 2");
        }};

// FSDP1 flattens no bytes together with floats, and experts one after the other would be unpacked
// for each of them.
constexpr ValidityRule kPackedExperts = {
    .name = "unsupported: quantizes_experts",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.quantizes_experts && job.quantized.kind != Quantization::kNone &&
                 (is_fsdp(job, plan, 1) || job.profile.eager_experts);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "quantizes_experts",
              job.profile.eager_experts ? "true with eager_experts" : "true with fsdp_version 1",
              "false, or fsdp_version 2 and grouped products");
        }};

// Trained copies of tables are wrapped for themselves by FSDP1 (fsdp_auto_wrap_policy).
constexpr ValidityRule kNoFlatCopies = {
    .name = "unsupported: adapters.trained_copies",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return is_fsdp(job, plan, 1) && (job.adapters.trains_table || job.adapters.trains_head);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "adapters.trained_copies", "true with fsdp_version 1",
                              "false, or fsdp_version 2");
        }};

// Matrices that FSDP2 shards by themselves are parts outside their own forward pass, where DoRA and
// adapters of experts read them; a trained copy of a table would be sharded twice (LLaMA-Factory
// ff6d4d1 src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py prepare_model).
std::string read_outside(const Job& job) {
  const Adapters& adapters = job.adapters;
  const bool adapts_experts = !huggingface::expert_adapters(job).are_none();
  return adapters.decomposes_weights                     ? "DoRA"
         : adapters.trains_table || adapters.trains_head ? "trained copies of tables"
         : adapts_experts                                ? "adapters of experts"
                                                         : "";
}
constexpr ValidityRule kPlainAdaptersAlone = {
    .name = "unsupported: fsdp_adapters_alone",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return is_fsdp(job, plan, 2) && job.profile.fsdp_adapters_alone &&
                 job.adapters.rank > 0 && !read_outside(job).empty();
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "fsdp_adapters_alone", "true with " + read_outside(job),
                              "false, or plain adapters on linear layers");
        }};

// CPUOffloadPolicy keeps shards on the host, and with them their gradients and the optimizer
// (torch/distributed/fsdp/_fully_shard/_fsdp_api.py).
constexpr ValidityRule kOffloadAllOrNone = {
    .name = "unsupported: offload.optimizer",
    .reads = {PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.offload.optimizer != 0 && plan.offload.optimizer != 1;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "offload.optimizer", number_text(plan.offload.optimizer),
                              "0, 1");
        }};
constexpr ValidityRule kOffloadParametersWithOptimizer = {
    .name = "unsupported: offload.parameters",
    .reads = {PlanField::kOffload},
    .broken =
        [](const Job&, const Plan& plan) {
          return plan.offload.parameters != (plan.offload.optimizer != 0);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "offload.parameters",
                              std::string(plan.offload.parameters ? "true" : "false") +
                                  " with offload.optimizer " + number_text(plan.offload.optimizer),
                              "both, as FSDP's CPU offload, or neither");
        }};
constexpr ValidityRule kOffloadNeedsShards = {
    .name = "offload_needs_shards",
    .reads = {PlanField::kOffload, PlanField::kZero},
    .broken = [](const Job&,
                 const Plan& plan) { return plan.offload.parameters && plan.zero == 0; },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "offload.parameters with zero 0: the host keeps shards of FSDP; valid: zero 2 or 3, "
              "or no offload");
        }};

// FSDP1 shows an adapter's matrices flat outside their own forward pass, and DoRA asks for their
// shapes there (peft 0.21 tuners/lora/dora.py get_lora_weight).
constexpr ValidityRule kDora = {
    .name = "unsupported: adapters.dora",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.adapters.decomposes_weights &&
                 (job.quantized.kind == Quantization::kInt8 || is_fsdp(job, plan, 1));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return job.quantized.kind == Quantization::kInt8
                     ? not_modelled(job, "adapters.dora", "true on int8 weights",
                                    "false, or quantization none, nf4 or fp4")
                     : not_modelled(job, "adapters.dora", "true with fsdp_version 1",
                                    "false, or fsdp_version 2");
        }};

constexpr ValidityRule kShardsNeedRanks = {
    .name = "zero_needs_ranks",
    .reads = {PlanField::kZero, PlanField::kTp, PlanField::kCp, PlanField::kPp},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.zero > 0 && dp_of(job, plan) * plan.cp == 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "zero " + number_text(plan.zero) + " shards parameters over one GPU" +
                 (plan.tp > 1 ? " of each tp group" : "") + "; valid: zero 0, or more GPUs";
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

// torch/amp/grad_scaler.py _unscale_grads_ raises on gradients in fp16, which have the type of what
// is trained; FSDP2's are those of its fp32 shards. Without mixed precision nobody scales.
constexpr ValidityRule kScaledGradients = {
    .name = "fp16_trains_wider_weights",
    .reads = {PlanField::kPrecision, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          const DType trained =
              job.adapters.rank > 0 ? job.adapters.dtype : job.profile.weights_dtype;
          return plan.precision == Precision::kFp16 && plan.zero == 0 && job.profile.autocast &&
                 trained == DType::kFp16;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return std::string("precision fp16 with ") +
                 (job.adapters.rank > 0 ? "adapters.dtype" : "weights_dtype") +
                 " fp16: its GradScaler takes no gradients in fp16; valid: fp32";
        }};

// FlashAttention takes sinks where every rank has whole sequences (sink_attention.h).
constexpr ValidityRule kSinksOfBackends = {
    .name = "unsupported: attention_backend",
    .reads = {PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          const bool takes_sinks = job.profile.attention_backend == AttentionBackend::kFlash &&
                                   !huggingface::class_of(job.model).attends_in_fp32 &&
                                   plan.cp == 1;
          return !takes_sinks && huggingface::kSinksAreEager.broken(job, plan);
        },
    .explain = huggingface::kSinksAreEager.explain};

constexpr std::array kTransformersRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kZero023,
    kPlainOnly,
    kHalfOrFp32,
    kGradientsOfWeights,
    kMasterFp32Only,
    kFp32ExpAvg,
    kFp32ExpAvgSq,
    kRecomputeByLayer,
    kPlannedTp,
    kNoSequenceParallel,
    kNoPp,
    kNoVpp,
    kCpMethods,
    huggingface::kSequencesOfGroups,
    kDealtExperts,
    kNoEtp,
    kReplicasOfFsdp2,
    kFamilies,
    kTowerOfKnownSizes,
    huggingface::kKnownNames,
    kNoMtp,
    kHeadDim,
    huggingface::kHeadsOfFamily,
    huggingface::kDenseExpertsAsRead,
    huggingface::kKernelsOfValueNorms,
    kActivationsOnHost,
    kTilesOfWholeFfns,
    kOffloadAllOrNone,
    kOffloadParametersWithOptimizer,
    kMoeBufferFactorUnsupported,
    kOptimizers,
    kMuonOnMatrices,
    kProgramOptimizersAsRead,
    huggingface::kNormsOfFamily,
    huggingface::kLigerOfFamily,
    huggingface::kLossesOfPlainHeads,
    huggingface::kAnchorAsRead,
    kSinksOfBackends,
    huggingface::kEagerAttentionAsRead,
    huggingface::kPositionsOfFamily,
    huggingface::kSequenceOfPositions,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    kDora,
    kNoFlatCopies,
    kPlainAdaptersAlone,
    kKernelsOnPlainAdapters,
    kFakeQuantizationAsRead,
    huggingface::kObjectivesAsRead,
    kObjectivesOverShards,
    huggingface::kRotationsAsRead,
    huggingface::kAdaptedExpertsAreGrouped,
    huggingface::kExpertKernelsAsRead,
    huggingface::kQuantizationAsRead,
    huggingface::kMixerKernelsAsRead,
    // accepted
    huggingface::kScansNeedConvolutions,
    huggingface::kConvolutionOfKernel,
    huggingface::kRuleOfKernel,
    kAdapterRank,
    kAdaptersHaveTargets,
    huggingface::kAdaptedMixerOutputs,
    huggingface::kWholeModules,
    huggingface::kPlainOnExperts,
    kQuantizedNeedsAdapters,
    huggingface::kNamesTrainSomething,
    huggingface::kUnreachedAreLookedFor,
    kPackedExperts,
    kShardsOfFloats,
    kFlatOfOneType,
    huggingface::kTurnedInOneType,
    huggingface::kHubKernelsOnGpu,
    kOptimizerTakesShards,
    kStepsInBackwardAlone,
    kBlocksOnOneGpu,
    kHeadsOfAdamMini,
    kPrecisionOfWeights,
    kScaledGradients,
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsByTp,
    kFfnByTp,
    kVocabByTp,
    kTpOptimizers,
    kTpBesideData,
    kOffloadNeedsShards,
    kShardsNeedRanks,
    kDpReplicate,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kEpByRanks,
    huggingface::kSequenceByRanks,
    kSequenceByRing,
    kA2aHeads,
    kHeadsByKvHeads,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    huggingface::kAnchorOfWholeModels,
    huggingface::kPairsOfTexts,
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kTransformersRules;
}

}  // namespace shardplan::transformers
