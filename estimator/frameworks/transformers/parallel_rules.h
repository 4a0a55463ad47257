// What transformers' Trainer divides over ranks besides data, and what of it is modelled. Sources:
// transformers 5.17 distributed/tensor_parallel.py, models/*/configuration_*.py
// (base_model_tp_plan), trainer.py _prepare_context_parallel_inputs; accelerate 1.15
// parallelism_config.py, accelerator.py _prepare_tp, big_modeling.py
// _attach_context_parallel_hooks; PyTorch 2.11 torch/distributed/tensor/experimental.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/pieces/huggingface/rules.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::transformers {

// Whether ring attention is that of axolotl 067b021 (monkeypatch/ring_attn), which stands in
// FlashAttention's place; accelerate's stands in that of PyTorch's own kernels.
inline bool gathers_heads(const Job& job, const Plan& plan) {
  return plan.cp > 1 && plan.cp_method == CpMethod::kAllGather &&
         job.profile.attention_backend == AttentionBackend::kFlash;
}

// What of a job no rank can have a part of, or was not read; "": nothing.
std::string undivided_by_tp(const Job& job);
// Why ring attention does not run; "": it does.
std::string why_no_ring(const Job& job, const Plan& plan);

inline constexpr ValidityRule kPlannedTp = {
    .name = "unsupported: tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.tp > 1 && !undivided_by_tp(job).empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "tp", number_text(plan.tp) + " with " + undivided_by_tp(job),
                              "1");
        }};

// dp_replicate of a device mesh (accelerate 1.15 utils/dataclasses.py ParallelismConfig); DDP's
// ranks are replicas all.
inline constexpr ValidityRule kReplicasOfFsdp2 = {
    .name = "unsupported: dp_replicate",
    .reads = {PlanField::kDpReplicate, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.dp_replicate > 1 && (plan.zero == 0 || job.profile.fsdp_version == 1);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "dp_replicate",
                              number_text(plan.dp_replicate) +
                                  (plan.zero == 0 ? " with zero 0" : " with fsdp_version 1"),
                              "1, or zero 2 or 3 of FSDP2");
        }};

// No class of the library divides norms by the sequence (distributed/configuration_utils.py:
// enable_sequence_parallel is reserved).
inline constexpr ValidityRule kNoSequenceParallel = {
    .name = "unsupported: sequence_parallel",
    .reads = {PlanField::kSequenceParallel},
    .broken = [](const Job&, const Plan& plan) { return plan.sequence_parallel; },
    .explain = [](const Job& job,
                  const Plan&) { return not_modelled(job, "sequence_parallel", "true", "false"); }};

// By Ulysses, which ms-swift and LLaMA-Factory's version 1 have.
inline bool exchanges_heads(const Plan& plan) {
  return plan.cp > 1 && plan.cp_method == CpMethod::kA2a;
}

// axolotl deals experts by DeepEP over all ranks, or over those that share no shards (067b021
// integrations/expert_parallel); "": it does.
std::string why_no_ep(const Job& job, const Plan& plan);

inline constexpr ValidityRule kDealtExperts = {
    .name = "unsupported: ep",
    .reads = {PlanField::kEp, PlanField::kTp, PlanField::kCp, PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.ep > 1 && !why_no_ep(job, plan).empty(); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "ep", number_text(plan.ep) + " with " + why_no_ep(job, plan),
                              "1");
        }};

// _resolve_ep_group: what experts are dealt to and what shares their shards are all ranks.
inline constexpr ValidityRule kEpByRanks = {
    .name = "ep_times_shards_is_world",
    .reads = {PlanField::kEp, PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kZero,
              PlanField::kDpReplicate},
    .broken =
        [](const Job& job, const Plan& plan) {
          const std::int64_t world = job.cluster.world_size();
          const bool fits =
              plan.zero == 0 ? plan.ep == world : world % plan.ep == 0 && plan.dp_replicate == 1;
          return plan.ep > 1 && !fits;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::string world = number_text(job.cluster.world_size());
          const std::string copies =
              plan.dp_replicate > 1 ? " and dp_replicate " + number_text(plan.dp_replicate) : "";
          return "ep " + number_text(plan.ep) + " over " + world + " GPUs with zero " +
                 number_text(plan.zero) + copies +
                 ": axolotl deals experts to all ranks that share no shards; valid: ep " + world +
                 (plan.zero == 0 ? ", or " + number_text(plan.ep) + " GPUs"
                                 : ", or another divisor of them, and dp_replicate 1");
        }};

// accelerate's ParallelismConfig takes no replicas beside tensor parallelism that no FSDP shards;
// up to 1.15 its _prepare_tp imports a class for parameters beside DTensors which transformers has
// no more since 5.0.
inline constexpr ValidityRule kTpBesideData = {
    .name = "tp_beside_data_parallelism",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kCpMethod, PlanField::kPp,
              PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          const bool is_sharded = plan.zero > 0;
          return plan.tp > 1 &&
                 (exchanges_heads(plan) || (is_sharded ? job.profile.tensor_parallel_dtensors ||
                                                             job.profile.fsdp_version == 1
                                                       : dp_of(job, plan) > 1));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          const std::string tp = "tp " + number_text(plan.tp);
          if (exchanges_heads(plan)) {
            return tp + " with cp " + number_text(plan.cp) +
                   " by a2a: the programs that exchange heads divide no layers; valid: tp 1, or "
                   "cp 1";
          }
          if (plan.zero == 0) {
            return tp + " with dp " + number_text(dp_of(job, plan)) +
                   " and zero 0: accelerate takes no replicas beside tensor parallelism; valid: "
                   "tp " +
                   number_text(job.cluster.world_size()) +
                   ", or zero 2 or 3 with tensor_parallel_dtensors false";
          }
          if (job.profile.fsdp_version == 1) {
            return tp +
                   " with fsdp_version 1: accelerate's parallelism_config needs FSDP2; valid: "
                   "fsdp_version 2, or tp 1";
          }
          return tp + " with zero " + number_text(plan.zero) +
                 ": accelerate imports ReplicateParallel of transformers for FSDP2 beside "
                 "DTensors, "
                 "which transformers 5 has no more, and ends with ImportError; valid: zero 0 with "
                 "tp " +
                 number_text(job.cluster.world_size()) +
                 ", or tensor_parallel_dtensors false, as transformers up to 5.14 has it";
        }};

inline constexpr ValidityRule kVocabByTp = {
    .name = "vocab_divisible_by_tp",
    .reads = {PlanField::kTp},
    .broken = [](const Job& job, const Plan& plan) { return job.model.vocab % plan.tp != 0; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("vocab", job.model.vocab, "tp", plan.tp);
        }};

inline constexpr ValidityRule kTpOptimizers = {
    .name = "optimizer_takes_parts_of_weights",
    .reads = {PlanField::kTp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.tp > 1 && job.optimizer != OptimizerKind::kAdamW;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return "optimizer " + std::string(name_of(job.optimizer)) + " with tp " +
                 number_text(plan.tp) + ": adamw was read; valid: adamw, or tp 1";
        }};

// Ulysses exchanges heads; accelerate's ring attends to keys of one rank after the other, axolotl's
// to those of all, head after head.
inline constexpr ValidityRule kCpMethods = {
    .name = "unsupported: cp_method",
    .reads = {PlanField::kCp, PlanField::kCpMethod, PlanField::kZero, PlanField::kMicroBatch},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.cp > 1 &&
                 (!huggingface::exchanges_heads(job.model) ||
                  (plan.cp_method != CpMethod::kA2a && !why_no_ring(job, plan).empty()));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return huggingface::exchanges_heads(job.model)
                     ? not_modelled(
                           job, "cp_method",
                           std::string(name_of(plan.cp_method)) + " with " + why_no_ring(job, plan),
                           "a2a (Ulysses), or cp 1")
                     : not_modelled(
                           job, "cp",
                           number_text(plan.cp) + " without plain attention in every layer", "1");
        }};

// A first and a last chunk of every sequence on each rank of a ring; one run of tokens on each of
// axolotl's.
inline constexpr ValidityRule kSequenceByRing = {.name = "sequence_divisible_by_2_cp",
                                                 .reads = {PlanField::kCp, PlanField::kCpMethod},
                                                 .broken =
                                                     [](const Job& job, const Plan& plan) {
                                                       return plan.cp_method != CpMethod::kA2a &&
                                                              !gathers_heads(job, plan) &&
                                                              kSequenceByCp.broken(job, plan);
                                                     },
                                                 .explain = kSequenceByCp.explain};

}  // namespace shardplan::transformers
