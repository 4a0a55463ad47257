// What torchtitan v0.2.2 accepts for its models, and what of it is modelled.
// Sources: torchtitan/distributed/parallel_dims.py, distributed/pipeline_parallel.py,
// models/llama3/infra/parallelize.py, config/job_config.py.
#include "estimator/frameworks/torchtitan/rules.h"

#include <algorithm>

#include "estimator/frameworks/pieces/unfused_widths.h"
#include "estimator/frameworks/torchtitan/expert_rules.h"
#include "estimator/frameworks/torchtitan/gpt_oss/rules.h"
#include "estimator/frameworks/torchtitan/latent_rules.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/validity/limits.h"
#include "estimator/validity/pipeline_rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::torchtitan {
namespace {

// --- what is modelled ----------------------------------------------------------------------------

constexpr ValidityRule kZero = kOnlyValues<"unsupported: zero", &Plan::zero, 0, 3>;
constexpr ValidityRule kSchedule =
    kOnlyValues<"unsupported: schedule", &Plan::schedule, Schedule::kNone, Schedule::kGpipe,
                Schedule::k1F1B, Schedule::kInterleaved1F1B, Schedule::kInterleavedZeroBubble,
                Schedule::kZbv>;
constexpr ValidityRule kPrecision =
    kOnlyValues<"unsupported: precision", &Plan::precision, Precision::kBf16, Precision::kFp8>;
constexpr ValidityRule kCpMethod =
    kOnlyValues<"unsupported: cp_method", &Plan::cp_method, CpMethod::kRing>;
constexpr ValidityRule kGradDtype =
    kOnlyValues<"unsupported: grad_dtype", &Plan::grad_dtype, DType::kFp32>;
constexpr ValidityRule kExpAvgDtype =
    kOnlyValues<"unsupported: exp_avg_dtype", &Plan::exp_avg_dtype, DType::kFp32>;
constexpr ValidityRule kExpAvgSqDtype =
    kOnlyValues<"unsupported: exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, DType::kFp32>;

constexpr bool is_modelled(const Recompute& recompute) {
  const bool plain = recompute.modules == RecomputeModules{} && recompute.num_layers == 1 &&
                     recompute.method == RecomputeMethod::kUniform;
  const bool by_policy =
      std::ranges::find(kRecomputePolicies, recompute.policy) != kRecomputePolicies.end();
  const bool selective = recompute.granularity == RecomputeGranularity::kSelective;
  return plain && (selective ? by_policy : recompute.policy.empty());
}

constexpr ValidityRule kRecompute = {
    .name = "unsupported: recompute",
    .reads = {PlanField::kRecompute},
    .broken = [](const Job&, const Plan& plan) { return !is_modelled(plan.recompute); },
    .explain =
        [](const Job& job, const Plan& plan) {
          const Recompute& recompute = plan.recompute;
          return not_modelled(job, "recompute",
                              std::string(name_of(recompute.granularity)) + " " + recompute.policy,
                              "none, full by single layers, selective with policy "
                              "every_second_matmul or every_second_layer");
        }};

// models/llama3 and llama4: RMSNorm, grouped-query attention without biases, SwiGLU, untied tables;
// models/qwen3: the same with norms of queries and keys, tables tied or not; models/deepseek_v3:
// latent attention without biases; models/gpt_oss: gpt_oss/rules.h.
bool is_described(const ModelSpec& model, std::int64_t sequence_length) {
  if (is_gpt_oss(model)) {
    return is_described_gpt_oss(model);
  }
  const bool plain = !model.qkv_bias && !model.attention_output_bias && !model.ffn_bias &&
                     !model.layer_norm && model.learned_positions == 0 && !missing_part(model, {});
  const bool windowed = std::ranges::any_of(model.layers, [&](const LayerSpec& layer) {
    return layer.attention_window > 0 && layer.attention_window < sequence_length;
  });
  return plain && !windowed && model.gated_ffn && (model.qk_norm || !model.tied_embeddings) &&
         model.norms_per_layer == 2;
}

constexpr ValidityRule kModel = {
    .name = "unsupported: model",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return !is_described(job.model, job.sequence_length); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model", job.model.name,
                              "Llama 3 and 4, Qwen3 and DeepSeek-V2 and V3: RMSNorm, grouped-query "
                              "or latent attention of all tokens, SwiGLU, no biases; tied "
                              "embeddings with norms of queries and keys (Qwen3) alone; GPT-OSS "
                              "with sinks, biases and a window on every second layer");
        }};

// models/qwen3_5 of the main branch: pytorch/torchtitan fd712e814.
constexpr ValidityRule kModelOfRelease = {
    .name = "model_needs_a_newer_torchtitan",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.family.starts_with("qwen3_5"); },
    .explain =
        [](const Job& job, const Plan&) {
          return "model " + job.model.name + " (" + job.model.family +
                 "): torchtitan v0.2.2 has none of its family; its main branch has since "
                 "fd712e814 (2026-06-10), which is not described; valid: Llama 3 and 4, Qwen3, "
                 "DeepSeek-V2 and V3, GPT-OSS";
        }};

// models/gpt_oss is given its head_dim beside dim and n_heads.
constexpr ValidityRule kHeadDim = {.name = kHeadDimFromHidden.name,
                                   .reads = {},
                                   .broken =
                                       [](const Job& job, const Plan& plan) {
                                         return !is_gpt_oss(job.model) &&
                                                kHeadDimFromHidden.broken(job, plan);
                                       },
                                   .explain = kHeadDimFromHidden.explain};

// models/deepseek_v3/model/model.py has no module behind the last layer.
constexpr ValidityRule kNoMultiTokenPrediction = {
    .name = "multi_token_prediction_needs_another_framework",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return job.model.num_mtp_layers > 0; },
    .explain =
        [](const Job& job, const Plan&) {
          return "torchtitan v0.2.2 has no multi-token prediction, model " + job.model.name +
                 " has " + number_text(job.model.num_mtp_layers) +
                 " module of it; valid: --model FILE, a config.json with num_nextn_predict_layers "
                 "0";
        }};

// models/qwen3/infra/parallelize.py keeps queries as DTensors of the tp mesh, which sdpa_input_fn
// of torch/distributed/tensor/experimental/_context_parallel/_attention.py asserts they are not.
constexpr ValidityRule kQwen3TpOrCp = {
    .name = "qwen3_tp_excludes_cp",
    .reads = {PlanField::kTp, PlanField::kCp},
    .broken = [](const Job& job,
                 const Plan& plan) { return job.model.qk_norm && plan.tp > 1 && plan.cp > 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "tp " + number_text(plan.tp) + " with cp " + number_text(plan.cp) +
                 " fails an assertion of PyTorch in Qwen3's attention; valid: tp 1 or cp 1";
        }};

// models/qwen3/__init__.py names no pipelining function, without which train.py stops.
constexpr ValidityRule kQwen3OnOneStage = {
    .name = "qwen3_needs_pp_1",
    .reads = {PlanField::kPp},
    .broken = [](const Job& job, const Plan& plan) { return job.model.qk_norm && plan.pp > 1; },
    .explain =
        [](const Job&, const Plan& plan) {
          return "pp " + number_text(plan.pp) +
                 ", which torchtitan v0.2.2 does not support for Qwen3; valid: pp 1";
        }};

// --- what torchtitan refuses, or runs as something else ------------------------------------------

// distributed/utils.py, maybe_enable_amp: beside tp or pp FSDP alone brings bf16.
constexpr ValidityRule kRanksShareShards = {
    .name = "unsupported: ranks without shards",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.cluster.world_size() > 1 && plan.dp_replicate == 1 && shards_of(job, plan) < 2;
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "dp * cp / dp_replicate is 1: without FSDP torchtitan trains in fp32 "
              "(distributed/utils.py, maybe_enable_amp), which is not modelled; modelled: 2 or "
              "more, DDP of all GPUs, or one GPU");
        }};

// models/llama3/infra/parallelize.py raises a RuntimeError unless replicas are all ranks.
constexpr ValidityRule kReplicasAlone = {
    .name = "ddp_needs_tp_1_and_pp_1",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.dp_replicate > 1 && shards_of(job, plan) == 1 &&
                 plan.dp_replicate != job.cluster.world_size();
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "dp_replicate " + number_text(plan.dp_replicate) +
                 " of one shard each, DDP, beside tp " + number_text(plan.tp) + " and pp " +
                 number_text(plan.pp) + "; valid: tp 1 with pp 1, or a smaller dp_replicate";
        }};

// On one GPU, and under DDP, mixed precision is autocast (maybe_enable_amp).
constexpr ValidityRule kZeroFitsShards = {
    .name = "zero_3_needs_shards",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate,
              PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return (plan.zero == 0) != (shards_of(job, plan) == 1); },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::int64_t shards = shards_of(job, plan);
          const std::string zero = "zero " + number_text(plan.zero);
          if (job.cluster.world_size() == 1) {
            return zero + " on 1 GPU; valid: zero 0";
          }
          return zero + " with dp * cp / dp_replicate " + number_text(shards) +
                 (shards == 1 ? "; valid: zero 0"
                              : "; valid: zero 3, or dp_replicate " +
                                    number_text(dp_of(job, plan)) + ", DDP");
        }};

constexpr ValidityRule kSpFollowsTp = {
    .name = "sequence_parallel_follows_tp",
    .reads = {PlanField::kTp, PlanField::kSequenceParallel},
    .broken = [](const Job&, const Plan& plan) { return plan.sequence_parallel != (plan.tp > 1); },
    .explain =
        [](const Job&, const Plan& plan) {
          return "sequence_parallel " + std::string(plan.sequence_parallel ? "true" : "false") +
                 " with tp " + number_text(plan.tp) + "; valid: true with tp > 1, else false";
        }};

constexpr ValidityRule kVocabByTp = {
    .name = "vocab_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job, const Plan& plan) { return job.model.vocab % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("vocab", job.model.vocab, "tp", plan.tp);
        }};

// generate_llm_fqn_per_model_part: embedding and head count as a layer each; no stage is empty.
constexpr ValidityRule kLayersFillStages = {
    .name = "layers_fill_stages",
    .reads = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.layers_per_chunk.empty() && plan.pp * plan.vpp > 1 &&
                 (job.model.num_layers() + 2) / plan.vpp / plan.pp < 2;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "num_layers " + number_text(job.model.num_layers()) + " + 2 over pp " +
                 number_text(plan.pp) + " * vpp " + number_text(plan.vpp) +
                 " stages leaves fewer than 2 a stage; valid: pp * vpp at most " +
                 number_text((job.model.num_layers() + 2) / 2);
        }};

// Chunks between the first, with the embedding, and the last, with the head.
// components/optimizer.py gives each model part an optimizer of its own, and torch.optim.Optimizer
// refuses a part without parameters.
constexpr ValidityRule kInnerChunksHaveLayers = {
    .name = "inner_chunks_have_layers",
    .reads = {PlanField::kLayersPerChunk},
    .broken =
        [](const Job&, const Plan& plan) {
          const std::vector<std::int64_t>& layers = plan.layers_per_chunk;
          return layers.size() > 2 && std::count(layers.begin() + 1, layers.end() - 1, 0) > 0;
        },
    .explain = [](const Job&, const Plan&) -> std::string {
      return "layers_per_chunk leaves a chunk between the first and the last with 0 layers; valid: "
             "at least 1";
    }};

constexpr std::array kRules = {
    kSizesPositive,
    // modelled
    kModelOfRelease,
    kKnownModelParts,
    kZero,
    kSchedule,
    kPrecision,
    kCpMethod,
    kGradDtype,
    kMasterFp32Only,
    kExpAvgDtype,
    kExpAvgSqDtype,
    kRecompute,
    kModel,
    kNoMultiTokenPrediction,
    kLatentOnOneRankOf,
    kLatentSharded,
    kLatentEager,
    kFlexIsLatent,
    kGptOssIsFlex,
    kGptOssEager,
    kGptOssSharded,
    kExperts,
    kExpertsOnOneStage,
    kScoredRowsSharded,
    kCompiledExperts,
    kExpertRoot,
    kFusedHeadDim,
    kHeadDim,
    kOffloadOptimizerUnsupported,
    kOffloadActivationsUnsupported,
    kOffloadParametersUnsupported,
    kMoeBufferFactorUnsupported,
    kTrainsAll,
    kQuantizationUnsupported,
    kAdamWOnly,
    // accepted
    kRankOrderComplete,
    kWorldByTpCpPp,
    kHeadsByTp,
    kKvHeadsByTp,
    kQwen3TpOrCp,
    kQwen3OnOneStage,
    kGptOssOnOneStage,
    kGptOssWithoutCp,
    kHeadsByKvHeads,
    kVocabByTp,
    kScheduleFitsPipeline,
    kLayersFillStages,
    kLayersPerChunk,
    kInnerChunksHaveLayers,
    kDpMatchesWorld,
    kGlobalBatch,
    kInterleavedMicrobatches,
    kSpFollowsTp,
    kSequenceByCp,
    kSequenceByTp,
    kFfnByTp,
    kExpertAxesNeedExperts,
    kExpertsByEp,
    kExpertFfnByEtp,
    kDpReplicate,
    kEtpFitsTp,
    kExpertsFillShards,
    kExpertsFillTheirShards,
    kRanksShareShards,
    kReplicasAlone,
    kZeroFitsShards,
    kFp8NeedsGpu,
    kMicrobatchTooLargeWith<widths_where_deterministic>,
};

}  // namespace

std::span<const ValidityRule> validity_rules() {
  return kRules;
}

}  // namespace shardplan::torchtitan
