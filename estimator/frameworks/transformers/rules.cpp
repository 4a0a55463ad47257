// What transformers' Trainer accepts, and what of it is modelled. Sources: transformers 5.17
// trainer.py, modeling_utils.py; accelerate 1.15; peft 0.21.
#include "estimator/frameworks/transformers/rules.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/transformers/model_class.h"
#include "estimator/frameworks/transformers/tuned.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"

namespace shardplan::transformers {
namespace {

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

// Experts by batched products of all tokens with each of them, rotary embeddings by complex numbers
// and norms of heads without weights (models/llama4/modeling_llama4.py) are not played.
constexpr ValidityRule kFamilies = {
    .name = "unsupported: model.family",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.family == "llama4_text"; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.family", "llama4_text", "others");
        }};

constexpr ValidityRule kNoDora = {
    .name = "unsupported: adapters.dora",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.adapters.decomposes_weights; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "adapters.dora", "true", "false"); }};

// integrations/sdpa_attention.py, use_gqa_in_sdpa: of wider heads keys and values are repeated.
constexpr std::int64_t kWidestHead = 256;
constexpr ValidityRule kHeadDim = {
    .name = "unsupported: model.head_dim",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.qk_head_dim() > kWidestHead; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.head_dim", number_text(job.model.qk_head_dim()),
                              "at most " + number_text(kWidestHead));
        }};

constexpr ValidityRule kAdapterRank = {
    .name = "adapters_have_a_rank",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.adapters.rank < 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters.rank " + number_text(job.adapters.rank) +
                 "; valid: at least 1, or no adapters";
        }};

// Layers without experts, shared experts, and experts that peft adapts.
bool has_ffn_modules(const ModelSpec& model) {
  return model.has_dense_layers() || model.moe.shared_ffn > 0 || class_of(model).adapts_experts;
}

// tuners_utils.py inject_adapter: a ValueError where no module is a target.
constexpr ValidityRule kAdaptersHaveTargets = {
    .name = "adapters_have_targets",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          using enum LinearLayer;
          const auto is_on = [&](LinearLayer layer) { return job.adapters.is_on(layer); };
          const bool on_attention = is_on(kQuery) || is_on(kKey) || is_on(kValue) || is_on(kOutput);
          const bool on_ffn = is_on(kGate) || is_on(kUp) || is_on(kDown);
          return job.adapters.rank > 0 && !on_attention && !(on_ffn && has_ffn_modules(job.model));
        },
    .explain =
        [](const Job&, const Plan&) {
          std::string names;
          for (const std::string_view name : kLinearLayerNames) { append_item(names, ", ", name); }
          return "adapters on no linear layer, which experts are not; valid targets: " + names;
        }};

// One module has one adapter: those that several places stand for are targets together.
using Places = std::array<LinearLayer, 3>;

bool are_alike(const Job& job, const Places& places) {
  const auto is_on = [&job](LinearLayer place) { return job.adapters.is_on(place); };
  return std::ranges::all_of(places, is_on) || std::ranges::none_of(places, is_on);
}

// The modules that are named apart, and the one that the model has; empty: none.
std::string parted_module(const Job& job) {
  using enum LinearLayer;
  const ModelClass& family = class_of(job.model);
  if (job.adapters.rank == 0) {
    return "";
  }
  if (family.has_one_qkv && !are_alike(job, {kQuery, kKey, kValue})) {
    return "a part of q_proj, k_proj and v_proj, which are one module, qkv_proj";
  }
  if ((family.has_one_gate_up || family.adapts_experts) && !are_alike(job, {kGate, kUp, kUp})) {
    return "one of gate_proj and up_proj, which are one module, gate_up_proj";
  }
  if (job.model.is_mla() && job.adapters.is_on(kKey) != job.adapters.is_on(kValue)) {
    return "one of k_proj and v_proj, which latent attention has not: on both they are on all of "
           "its projections";
  }
  return "";
}

constexpr ValidityRule kWholeModules = {
    .name = "adapters_on_whole_modules",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return !parted_module(job).empty(); },
    .explain =
        [](const Job& job, const Plan&) {
          return "adapters on " + parted_module(job) + "; valid: on all of them, or on none";
        }};

// ParamWrapper.__init__: a ValueError.
constexpr ValidityRule kNoDropoutOfExperts = {
    .name = "adapters_of_experts_drop_nothing",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const ExpertAdapters ranks = expert_adapters(job);
          return job.adapters.dropout > 0 && job.model.has_moe_layers() &&
                 (ranks.gate_up > 0 || ranks.down > 0);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "adapters.dropout with adapters on experts, which peft refuses; valid: "
              "dropout 0, or no adapters on gate_proj, up_proj and down_proj");
        }};

// Trainer.__init__ refuses to fine-tune a purely quantized model.
constexpr ValidityRule kQuantizedNeedsAdapters = {
    .name = "quantized_weights_need_adapters",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.quantized.kind != Quantization::kNone && job.adapters.rank == 0;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "quantization " + std::string(name_of(job.quantized.kind)) +
                 " of weights that are to be trained; valid: with adapters, or no quantization";
        }};

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
    kFamilies,
    kGatedOnly,
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
    kWholeModules,
    kNoDropoutOfExperts,
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
