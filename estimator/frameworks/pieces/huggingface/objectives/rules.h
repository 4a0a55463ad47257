// What of training by preferences, rewards and labels is modelled, and what its trainers refuse.
#pragma once

#include <string>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::huggingface {

// A second model, which is not trained, lies beside the trained one; else that one without its
// adapters is the reference, or nobody is asked.
inline bool has_whole_reference(const Job& job) {
  return job.profile.head_loss == HeadLoss::kAnchored ||
         (has_reference(job.profile.objective) && !job.profile.precomputes_reference &&
          job.adapters.rank == 0);
}

// Forward passes of a step's texts without a graph, beside the one that is trained: the
// reference's, and for KTO those of texts and answers that do not belong together, of both.
inline double passes_without_graph(const Job& job) {
  const bool asks = !job.profile.precomputes_reference;
  if (job.profile.head_loss == HeadLoss::kAnchored) {
    return 1;
  }
  switch (job.profile.objective) {
    case Objective::kDpo: return asks ? 1 : 0;
    case Objective::kKto: return asks ? 3 : 1;
    default: return 0;
  }
}

// The objective, and the loss where that asks for them.
inline std::string what_compares(const Job& job) {
  return std::string(name_of(job.profile.objective)) +
         (job.profile.head_loss == HeadLoss::kAnchored ? " with head_loss asft" : "");
}

// Outputs of the layer behind the last hidden states.
inline std::int64_t head_outputs(const Job& job, const Plan& plan) {
  const bool is_score = ends_in_labels(job.profile.objective) &&
                        job.profile.objective_trainer != ObjectiveTrainer::kFactory;
  return is_score ? job.profile.num_labels : padded_vocab(job, plan) / plan.tp;
}

// What the estimate of an objective takes for granted; "" for the next token.
inline std::string objective_assumption(const Job& job) {
  using enum Objective;
  switch (job.profile.objective) {
    case kNextToken: return "";
    case kReward:
      return "objective reward: sequences are pairs, chosen and rejected, all of them "
             "sequence_length "
             "long";
    case kTokenLabels:
      return "objective token_labels: a layer of " + number_text(job.profile.num_labels) +
             " labels stands in place of the head";
    case kDpo:
    case kOrpo:
    case kSimpo:
      return "objective " + std::string(name_of(job.profile.objective)) +
             ": sequences are pairs, chosen and rejected, all of them sequence_length long, which "
             "bounds what shorter ones take";
    case kKto:
      return "objective kto: answers that belong to other texts, which run without a graph, are as "
             "long as the texts themselves";
  }
  return "";
}

// "" where the objective is described.
inline std::string why_no_objective(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const Objective objective = profile.objective;
  const bool is_of_factory = profile.objective_trainer == ObjectiveTrainer::kFactory;
  const bool compares = passes_without_graph(job) > 0;
  const bool takes_logits = !ends_in_labels(objective) || is_of_factory;
  if (objective == Objective::kNextToken) {
    return "";
  }
  if (plan.cp > 1 || plan.tp > 1) {
    return plan.tp > 1 ? "tp " + number_text(plan.tp) : "cp " + number_text(plan.cp);
  }
  if (profile.loop != TrainerLoop::kTrainer) {
    return "loop " + std::string(name_of(profile.loop));
  }
  if (profile.head_loss != HeadLoss::kStock) {
    return "head_loss " + std::string(name_of(profile.head_loss));
  }
  if (is_of_factory && ends_in_labels(objective) &&
      (objective == Objective::kTokenLabels || job.adapters.rank == 0)) {
    return objective == Objective::kReward ? "objective_trainer llamafactory and all parameters"
                                           : "objective_trainer llamafactory";
  }
  if (is_of_factory && profile.precomputes_reference && has_reference(objective)) {
    return "objective_trainer llamafactory and precomputes_reference";
  }
  if (ends_in_labels(objective) && profile.vision_tower != TowerUse::kAbsent) {
    return "vision_tower " + std::string(name_of(profile.vision_tower));
  }
  // TRL's trainers add the loss that balances experts, which asks for what routers choose.
  if (takes_logits && profile.objective_trainer == ObjectiveTrainer::kTrl &&
      job.model.has_moe_layers()) {
    return "experts, whose balance is in TRL's loss";
  }
  if (compares && (profile.adapter_kernels || !expert_adapters(job).are_none())) {
    return profile.adapter_kernels ? "adapter_kernels" : "adapters on experts";
  }
  return "";
}

inline constexpr ValidityRule kObjectivesAsRead = {
    .name = "unsupported: objective",
    .reads = {PlanField::kTp, PlanField::kCp},
    .broken = [](const Job& job, const Plan& plan) { return !why_no_objective(job, plan).empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(
              job, "objective",
              std::string(name_of(job.profile.objective)) + " with " + why_no_objective(job, plan),
              "next_token, or without");
        }};

// ASFT was read in LLaMA-Factory's supervised training of whole models: "" where it is so.
inline std::string why_no_anchor(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  return plan.tp > 1                                  ? "tp " + number_text(plan.tp)
         : plan.cp > 1                                ? "cp " + number_text(plan.cp)
         : profile.loop != TrainerLoop::kTrainer      ? "another loop than the Trainer's"
         : profile.objective != Objective::kNextToken ? "another objective than next_token"
         : profile.liger_kernel != LigerKernel::kOff  ? "liger_kernel"
         : profile.vision_tower != TowerUse::kAbsent  ? "a tower"
         : job.quantized.kind != Quantization::kNone  ? "quantized weights"
                                                      : "";
}
inline constexpr ValidityRule kAnchorAsRead = {
    .name = "unsupported: head_loss",
    .reads = {PlanField::kTp, PlanField::kCp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.head_loss == HeadLoss::kAnchored && !why_no_anchor(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "head_loss", "asft with " + why_no_anchor(job, plan),
                              "dft, or asft without");
        }};
// LLaMA-Factory makes no second model for adapters, and calls it all the same (ff6d4d1
// src/llamafactory/train/trainer_utils.py create_ref_model, train/sft/trainer.py compute_loss).
inline constexpr ValidityRule kAnchorOfWholeModels = {
    .name = "asft_trains_whole_models",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.head_loss == HeadLoss::kAnchored && job.adapters.rank > 0;
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "head_loss asft with adapters: LLaMA-Factory makes no reference model for them, and "
              "its first step raises; valid: training without adapters, or head_loss dft");
        }};

// A microbatch is as many chosen texts as rejected ones, of two tokens at least.
inline constexpr ValidityRule kPairsOfTexts = {
    .name = "microbatches_are_pairs",
    .reads = {PlanField::kMicroBatch},
    .broken =
        [](const Job& job, const Plan& plan) {
          const Objective objective = job.profile.objective;
          return objective != Objective::kNextToken &&
                 ((has_pairs(objective) && plan.micro_batch % 2 != 0) || job.sequence_length < 2);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::string objective(name_of(job.profile.objective));
          return job.sequence_length < 2
                     ? "sequence_length " + number_text(job.sequence_length) + " with objective " +
                           objective + ": no token follows another; valid: at least 2"
                     : "micro_batch " + number_text(plan.micro_batch) + " with objective " +
                           objective +
                           ": its sequences are pairs, one chosen and one rejected; valid: even";
        }};

}  // namespace shardplan::huggingface
