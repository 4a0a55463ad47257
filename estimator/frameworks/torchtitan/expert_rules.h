// Which mixtures of experts torchtitan accepts, and what of them is modelled.
#pragma once

#include <cstdint>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/plan/units.h"
#include "estimator/validity/sizes.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::torchtitan {

inline bool is_llama4(const ModelSpec& model) {
  return model.family == "llama4_text";
}

// models/moe as Qwen3's arguments set it, a mixture in every layer, without shared experts; and as
// DeepSeek's and Llama 4's, with them.
inline bool has_modelled_experts(const ModelSpec& model) {
  const MoeSpec& moe = model.moe;
  if (model.is_mla()) {
    return !moe.shared_gate;
  }
  if (is_gpt_oss(model)) {
    return true;  // is_described_gpt_oss
  }
  if (is_llama4(model)) {
    return !model.tied_embeddings && !moe.shared_gate && !moe.router_bias;
  }
  return model.family == "qwen3_moe" && !model.tied_embeddings && !model.has_dense_layers() &&
         moe.shared_ffn == 0 && !moe.shared_gate && !moe.router_bias;
}

inline constexpr ValidityRule kExperts = {
    .name = "unsupported: experts",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return has_experts(job) && !has_modelled_experts(job.model); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "experts of", job.model.name,
                              "Qwen3: a mixture in every layer, without shared experts; and of "
                              "DeepSeek-V2 and V3, Llama 4 and GPT-OSS");
        }};

// Qwen3's run nowhere in a pipeline (qwen3_needs_pp_1), DeepSeek's not here.
inline constexpr ValidityRule kExpertsOnOneStage = {
    .name = "unsupported: experts in a pipeline",
    .reads = {PlanField::kPp},
    .broken = [](const Job& job, const Plan& plan) { return is_llama4(job.model) && plan.pp > 1; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "pp with the experts of Llama 4", number_text(plan.pp), "1");
        }};

inline constexpr ValidityRule kScoredRowsSharded = {
    .name = "unsupported: Llama 4 on one GPU",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return is_llama4(job.model) && plan.zero != 3; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "Llama 4 under zero", number_text(plan.zero),
                              "3, over two shards or more");
        }};

// TorchInductor's graphs of attention have been read with norms of queries and keys alone.
inline constexpr ValidityRule kCompiledExperts = {
    .name = "unsupported: compiled experts",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return has_experts(job) && compiles_layers(job.profile) && !job.model.qk_norm;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "compile with experts", "true without norms of queries and keys",
                              "false, or with them");
        }};

inline constexpr ValidityRule kExpertRoot = {
    .name = "unsupported: experts with root_holds_ends",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return has_experts(job) && job.profile.root_holds_ends; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "root_holds_ends with experts", "true", "false");
        }};

inline std::int64_t shards_of(const Job& job, const Plan& plan) {
  return dp_of(job, plan) * plan.cp / plan.dp_replicate;
}

// distributed/parallel_dims.py, _validate; without ep every expert is divided over tp whatever
// expert_tensor_parallel_degree says (models/llama4/infra/parallelize.py, apply_moe_ep_tp).
inline constexpr ValidityRule kEtpFitsTp = {
    .name = "etp_is_1_or_tp",
    .reads = {PlanField::kTp, PlanField::kEp, PlanField::kEtp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.etp != plan.tp && (plan.ep == 1 || plan.etp != 1);
        },
    .explain =
        [](const Job&, const Plan& plan) {
          return "etp " + number_text(plan.etp) + " with tp " + number_text(plan.tp) + " and ep " +
                 number_text(plan.ep) + "; valid: " + number_text(plan.tp) +
                 (plan.ep > 1 ? " or 1" : ", without ep tp divides every expert");
        }};

inline std::int64_t expert_ranks(const Plan& plan) {
  return plan.ep * plan.etp;
}

// The mesh of experts: dp_shard * cp * tp ranks are efsdp * ep * etp (build_mesh).
inline constexpr ValidityRule kExpertsFillShards = {
    .name = "ep_etp_divide_shards",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate,
              PlanField::kEp, PlanField::kEtp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && shards_of(job, plan) * plan.tp % expert_ranks(plan) != 0;
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_divisible("dp / dp_replicate * cp * tp", shards_of(job, plan) * plan.tp,
                               "ep * etp", expert_ranks(plan));
        }};

inline std::int64_t sharded_experts(const Job& job, const Plan& plan) {
  return shards_of(job, plan) * plan.tp / plan.etp;
}

// With ep.
inline bool splits_rows(const Job& job, const Plan& plan) {
  const std::int64_t shards = sharded_experts(job, plan) / plan.ep;
  return shards > 0 && job.model.hidden % shards == 0 &&
         job.model.moe.expert_ffn / plan.etp % shards == 0;
}

// FSDP pads a tensor of fewer experts than shards (padded_experts); with ep it shards the next
// dimension instead, which they must divide (_fsdp_param.py, _init_sharded_param).
inline constexpr ValidityRule kExpertsFillTheirShards = {
    .name = "unsupported: more shards than experts",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp, PlanField::kDpReplicate,
              PlanField::kEp, PlanField::kEtp, PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return has_experts(job) && plan.zero == 3 && plan.ep > 1 &&
                 sharded_experts(job, plan) > job.model.moe.num_experts && !splits_rows(job, plan);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "shards of experts times ep",
                              number_text(sharded_experts(job, plan)),
                              "at most " + number_text(job.model.moe.num_experts) +
                                  " (num_experts), ep 1, or shards that divide hidden and expert "
                                  "width");
        }};

}  // namespace shardplan::torchtitan
