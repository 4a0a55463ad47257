// What DeepSpeed accepts, and what of it is modelled. Sources: DeepSpeed runtime/config.py,
// runtime/zero/config.py.
#include "estimator/frameworks/deepspeed/rules.h"

#include <array>
#include <string>

#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/pieces/huggingface/adapter_rules.h"
#include "estimator/frameworks/pieces/huggingface/kernel_rules.h"
#include "estimator/frameworks/pieces/huggingface/mixers/rules.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface/rules.h"
#include "estimator/frameworks/pieces/huggingface/weights/rules.h"
#include "estimator/frameworks/pieces/tower_rule.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::deepspeed {
namespace {

using huggingface::kAdapterRank;
using huggingface::kAdaptersHaveTargets;
using huggingface::kQuantizedNeedsAdapters;

constexpr ValidityRule kZeroStages = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 1, 2, 3>;
// What DeepSpeed makes of offload_optimizer without ZeRO was not read.
constexpr ValidityRule kOffloadNeedsZero = {
    .name = "unsupported: offload.optimizer",
    .reads = {PlanField::kZero, PlanField::kOffload},
    .broken = [](const Job&,
                 const Plan& plan) { return plan.zero == 0 && plan.offload.optimizer > 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "offload.optimizer", "with zero 0", "zero 1, 2 or 3");
        }};
constexpr ValidityRule kBf16OrFp16 =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp16>;
constexpr ValidityRule kBf16Gradients =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kBf16, DType::kFp16>;
constexpr ValidityRule kPlainOnly =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone>;
// ZeRO divides what is trained, and so what never gets a gradient, too, which is not described.
constexpr ValidityRule kNoIdleModules = {
    .name = "unsupported: model.family",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return huggingface::class_of(job.model).idle_predictions > 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.family",
                              job.model.family + ", whose prediction modules never run", "others");
        }};
// What ZeRO-3 gathers for passes without a graph, divides of a reference model and has of a layer
// of labels was not read.
constexpr ValidityRule kObjectivesOverPartitions = {
    .name = "unsupported: objective",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.zero == 3 && (huggingface::passes_without_graph(job) > 0 ||
                                    ends_in_labels(job.profile.objective));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "objective", huggingface::what_compares(job) + " with zero 3",
                              "zero 1 or 2, or next_token, orpo and simpo by another loss than "
                              "asft");
        }};
constexpr ValidityRule kAdamWOf32Or8Bits =
    kOnlyValues<"unsupported: optimizer", &Job::optimizer, OptimizerKind::kAdamW,
                OptimizerKind::kAdamW8bit, OptimizerKind::kPagedAdamW,
                OptimizerKind::kPagedAdamW8bit>;
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

constexpr ValidityRule kNoDora = {
    .name = "unsupported: adapters.dora",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.adapters.decomposes_weights; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "adapters.dora", "true", "false"); }};

constexpr ValidityRule kNoRotations = {
    .name = "unsupported: adapters.kind",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.adapters.rank > 0 && job.adapters.kind != AdapterKind::kLora;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "adapters.kind", name_of(job.adapters.kind), "lora");
        }};

// A parameter that ZeRO-3 has divided has no elements when peft puts an adapter's product in its
// place, in front of the module's gather (peft 0.21 tuners/lora/layer.py ParamWrapper,
// _activate_lora).
constexpr ValidityRule kAdaptedExpertsAreWhole = {
    .name = "unsupported: adapters_of_experts",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.zero == 3 && !huggingface::expert_adapters(job).are_none();
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "adapters.targets", "experts with zero 3",
                              "zero 1 or 2, or q_proj, k_proj, v_proj and o_proj alone");
        }};

// ZeRO-3 divides packed weights that lie in a floating type, as peft asks for it.
constexpr ValidityRule kPackedInFloats = {
    .name = "unsupported: quantization",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          const bool is_divided = is_4bit(job.quantized.kind) && job.profile.float_quant_storage;
          return plan.zero == 3 && job.quantized.kind != Quantization::kNone && !is_divided;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "quantization",
                              std::string(name_of(job.quantized.kind)) +
                                  " with zero 3 and float_quant_storage " +
                                  (job.profile.float_quant_storage ? "true" : "false"),
                              "nf4 or fp4 with float_quant_storage true, or zero 1, zero 2");
        }};

// Packed weights are unpacked to bf16.
constexpr ValidityRule kQuantizedInBf16 = {
    .name = "unsupported: precision_with_quantization",
    .reads = {PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.precision == Precision::kFp16 && job.quantized.kind != Quantization::kNone;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "precision_with_quantization",
                              "fp16 with " + std::string(name_of(job.quantized.kind)), "bf16");
        }};

// Of what is played operator by operator.
constexpr ValidityRule kHeadDimOfOperators = {
    .name = "unsupported: model.head_dim",
    .reads = {PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return huggingface::kHeadDim.broken(job, plan) && plays_operators(job, plan);
        },
    .explain = huggingface::kHeadDim.explain};

// runtime/zero/utils.py defragment asserts that all that is trained has one type.
constexpr ValidityRule kTrainedOfOneType = {
    .name = "zero_3_trains_one_type",
    .reads = {PlanField::kZero, PlanField::kPrecision},
    .broken =
        [](const Job& job, const Plan& plan) {
          if (plan.zero < 3 || !(job.adapters.trains_table || job.adapters.trains_head)) {
            return false;
          }
          const Adapters adapters = as_trained(job, plan).adapters;
          return adapters.dtype != adapters.copies_dtype;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters in " + std::string(name_of(job.adapters.dtype)) +
                 " beside trained copies of embedding or head in half precision with zero 3; "
                 "valid: "
                 "adapters in that type, zero 1 or 2, or no trained copies";
        }};

// The function reads the output projection's weight outside that module, which ZeRO-3 then gathers
// as one of another module's until the mixer returns.
constexpr ValidityRule kCombinedScanOfWholeWeights = {
    .name = "unsupported: mixer_kernels",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.mixer_kernels && plan.zero == 3 && huggingface::has_mamba2(job.model);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "mixer_kernels", "true with Mamba-2 and zero 3",
                              "false, or zero 1 or 2");
        }};

constexpr std::array kDeepspeedRules = {
    kSizesPositive,
    // modelled
    kKnownModelParts,
    kZeroStages,
    kOffloadNeedsZero,
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
    huggingface::kUlyssesOnly,
    huggingface::kSequencesOfGroups,
    kNoEp,
    kNoEtp,
    kNoReplicas,
    kHeadDimOfOperators,
    huggingface::kHeadsOfFamily,
    huggingface::kDenseExpertsAsRead,
    huggingface::kKernelsOfValueNorms,
    kNoMtp,
    kOffloadActivationsUnsupported,
    kMoeBufferFactorUnsupported,
    kNoDora,
    kNoRotations,
    huggingface::kAdaptedExpertsAreGrouped,
    kAdaptedExpertsAreWhole,
    kPackedInFloats,
    kQuantizedInBf16,
    kAdamWOf32Or8Bits,
    huggingface::kFamilies,
    kTowerOfKnownSizes,
    huggingface::kFrozenTowerOnly,
    huggingface::kKnownNames,
    huggingface::kNormsOfFamily,
    huggingface::kLigerOfFamily,
    kNoIdleModules,
    huggingface::kObjectivesAsRead,
    kObjectivesOverPartitions,
    huggingface::kLossesOfPlainHeads,
    huggingface::kAnchorAsRead,
    huggingface::kSinksAreEager,
    huggingface::kEagerAttentionAsRead,
    huggingface::kPositionsOfFamily,
    huggingface::kSequenceOfPositions,
    huggingface::kMixerKernelsAsRead,
    kCombinedScanOfWholeWeights,
    kHiddenDropoutUnsupported,
    kAttentionDropoutUnsupported,
    huggingface::kQuantizationAsRead,
    // accepted
    huggingface::kScansNeedConvolutions,
    huggingface::kConvolutionOfKernel,
    huggingface::kRuleOfKernel,
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByKvHeads,
    huggingface::kSequenceByRanks,
    kA2aHeads,
    kLayersPerChunk,
    kDpMatchesWorld,
    kGlobalBatch,
    kSpNeedsTp,
    kOffloadOptimizerShare,
    kPartialOffload,
    kOffloadParametersNeedZero3,
    kAdapterRank,
    kAdaptersHaveTargets,
    huggingface::kAdaptedMixerOutputs,
    huggingface::kWholeModules,
    huggingface::kPlainOnExperts,
    kQuantizedNeedsAdapters,
    huggingface::kNamesTrainSomething,
    kTrainedOfOneType,
    huggingface::kAnchorOfWholeModels,
    huggingface::kPairsOfTexts,
    kMicrobatchTooLarge,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kDeepspeedRules;
}

}  // namespace shardplan::deepspeed
