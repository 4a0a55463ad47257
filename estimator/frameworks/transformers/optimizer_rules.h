// Which optimizers transformers' Trainer is modelled with, and what they take.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/pieces/eager_rules.h"
#include "estimator/frameworks/transformers/program_optimizers.h"
#include "estimator/validity/limits.h"

namespace shardplan::transformers {

inline constexpr ValidityRule kOptimizers =
    kOnlyValues<"unsupported: optimizer", &Job::optimizer, OptimizerKind::kAdamW,
                OptimizerKind::kSgd, OptimizerKind::kAdafactor, OptimizerKind::kAdamW8bit,
                OptimizerKind::kPagedAdamW, OptimizerKind::kPagedAdamW8bit,
                OptimizerKind::kTorchaoAdamW8bit, OptimizerKind::kTorchaoAdamW4bit,
                OptimizerKind::kMuon, OptimizerKind::kLion, OptimizerKind::kPagedLion,
                OptimizerKind::kLion8bit, OptimizerKind::kPagedLion8bit, OptimizerKind::kGaLore,
                OptimizerKind::kApollo, OptimizerKind::kAdamMini, OptimizerKind::kBAdam,
                OptimizerKind::kMuonClip>;

// PyTorch's takes plain tensors; Moonshot's gathers what is sharded in LLaMA-Factory's version 1
// alone, which leaves adapters to AdamW.
inline std::string what_muon_takes_not(const Job& job, const Plan& plan) {
  const bool is_moonshot = !job.profile.fused_optimizer;
  const bool gathers = is_moonshot && job.profile.loop == TrainerLoop::kFactoryV1;
  if (plan.zero > 0 && !gathers) {
    return "zero " + number_text(plan.zero);
  }
  if (job.adapters.rank > 0 && (!is_moonshot || gathers)) {
    return "adapters";
  }
  return job.model.moe.num_experts > 0 ? "experts" : "";
}
inline constexpr ValidityRule kMuonOnMatrices = {
    .name = "unsupported: muon",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.optimizer == OptimizerKind::kMuon && !what_muon_takes_not(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "optimizer", "muon with " + what_muon_takes_not(job, plan),
                              "muon on whole dense models with zero 0, with fused_optimizer false "
                              "on adapters as well");
        }};

inline bool is_fsdp(const Job& job, const Plan& plan, std::int64_t version) {
  return plan.zero > 0 && job.profile.fsdp_version == version;
}

// FSDP2's parameters are DTensors, which bitsandbytes' kernels do not take (no sharding strategy is
// registered for them), and whose means transformers' Adafactor adds to plain tensors.
constexpr bool takes_shards(OptimizerKind kind) {
  return kind != OptimizerKind::kAdafactor && !is_of_bitsandbytes(kind);
}
inline constexpr ValidityRule kOptimizerTakesShards = {
    .name = "optimizer_takes_shards",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return is_fsdp(job, plan, 2) && !takes_shards(job.optimizer);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "optimizer " + std::string(name_of(job.optimizer)) + " with zero " +
                 number_text(plan.zero) +
                 ": its steps take no DTensors, which FSDP2's parameters are; valid: adamw, sgd, "
                 "torchao_adamw_8bit or torchao_adamw_4bit, or zero 0";
        }};

// GaLore, APOLLO, Adam-mini, BAdam and MuonClip were read as programs run them on whole models.
constexpr bool is_of_program(OptimizerKind kind) {
  using enum OptimizerKind;
  return kind == kGaLore || kind == kApollo || kind == kAdamMini || kind == kBAdam ||
         kind == kMuonClip;
}
// Matrices that are no linear layers: of mixers, and of positions.
inline bool has_other_matrices(const ModelSpec& model) {
  return model.learned_positions > 0 ||
         std::ranges::any_of(model.layers, [](const LayerSpec& layer) {
           return layer.mixer != MixerKind::kAttention || layer.has_mamba_beside;
         });
}
inline std::string what_program_optimizers_take_not(const Job& job, const Plan& plan) {
  const OptimizerKind kind = job.optimizer;
  return plan.zero > 0                   ? "zero " + number_text(plan.zero)
         : plan.tp > 1                   ? "tp " + number_text(plan.tp)
         : job.model.moe.num_experts > 0 ? "experts"
         : has_other_matrices(job.model) ? "mixers or learned positions"
         : job.adapters.rank > 0 && kind != OptimizerKind::kMuonClip     ? "adapters"
         : !job.profile.fused_optimizer && kind == OptimizerKind::kBAdam ? "fused_optimizer false"
                                                                         : "";
}
inline constexpr ValidityRule kProgramOptimizersAsRead = {
    .name = "unsupported: optimizers of programs",
    .reads = {PlanField::kZero, PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return is_of_program(job.optimizer) &&
                 !what_program_optimizers_take_not(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "optimizer",
                              std::string(name_of(job.optimizer)) + " with " +
                                  what_program_optimizers_take_not(job, plan),
                              "whole dense models with zero 0 and tp 1, of muonclip adapters as "
                              "well, of badam with fused_optimizer true");
        }};

// LLaMA-Factory ff6d4d1 hparams/parser.py, train/trainer_utils.py _create_galore_optimizer: a
// gradient that is gone behind its step is neither summed over ranks nor over microbatches.
inline constexpr ValidityRule kStepsInBackwardAlone = {
    .name = "steps_in_backward_see_one_microbatch",
    .reads = {PlanField::kDpReplicate, PlanField::kMicroBatch, PlanField::kTp, PlanField::kCp,
              PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return steps_in_backward(job) &&
                 (dense_shard_size(job, plan) > 1 || num_microbatches(job, plan) > 1);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "optimizer_steps in_backward over " + number_text(dense_shard_size(job, plan)) +
                 " GPUs with " + number_text(num_microbatches(job, plan)) +
                 " microbatches a step: gradients are gone before they could be summed; valid: one "
                 "GPU and one microbatch, or optimizer_steps together";
        }};
// The same file of LLaMA-Factory: over several GPUs BAdam wants DeepSpeed's ZeRO-3.
inline constexpr ValidityRule kBlocksOnOneGpu = {
    .name = "badam_runs_on_one_gpu",
    .reads = {PlanField::kDpReplicate, PlanField::kTp, PlanField::kCp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.optimizer == OptimizerKind::kBAdam && dense_shard_size(job, plan) > 1;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "optimizer badam over " + number_text(dense_shard_size(job, plan)) +
                 " GPUs: LLaMA-Factory does not start it without DeepSpeed's ZeRO-3, with which it "
                 "is not modelled; valid: one GPU";
        }};
// adam_mini.py step: moments of queries and keys are seen as rows of a head's elements.
inline std::int64_t key_elements(const ModelSpec& model) {
  return model.hidden * model.num_kv_heads * model.head_dim;
}
inline constexpr ValidityRule kHeadsOfAdamMini = {
    .name = "adam_mini_divides_keys_by_heads",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.optimizer == OptimizerKind::kAdamMini &&
                 (job.model.is_mla() ||
                  key_elements(job.model) % adam_mini_head_elements(job.model) != 0);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "optimizer adam_mini with keys of " + number_text(key_elements(job.model)) +
                 " elements, which heads of hidden^2 / num_heads = " +
                 number_text(adam_mini_head_elements(job.model)) +
                 " do not divide: its step raises; valid: models whose heads are hidden / "
                 "num_heads wide";
        }};

}  // namespace shardplan::transformers
