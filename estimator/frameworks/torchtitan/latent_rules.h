// What of multi-head latent attention is modelled in torchtitan: DeepSeek's models.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/plan/units.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::torchtitan {

inline bool is_latent(const Job& job) {
  return job.model.is_mla();
}

// What of DeepSeek's models has been read from its traces (latent_layer.cpp).
inline constexpr ValidityRule kLatentOnOneRankOf = {
    .name = "unsupported: latent attention over ranks",
    .reads = {PlanField::kTp, PlanField::kCp, PlanField::kPp},
    .broken =
        [](const Job& job, const Plan& plan) {
          return is_latent(job) && (plan.tp > 1 || plan.cp > 1 || plan.pp > 1);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "latent attention",
                              "tp " + number_text(plan.tp) + ", cp " + number_text(plan.cp) +
                                  ", pp " + number_text(plan.pp),
                              "tp 1, cp 1, pp 1 with dp and ep");
        }};

inline constexpr ValidityRule kLatentSharded = {
    .name = "unsupported: latent attention on one GPU",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job, const Plan& plan) { return is_latent(job) && plan.zero != 3; },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "latent attention under zero", number_text(plan.zero),
                              "3, over two shards or more");
        }};

inline constexpr ValidityRule kLatentEager = {
    .name = "unsupported: compiled latent attention",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return is_latent(job) && (compiles_layers(job.profile) || job.profile.root_holds_ends);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "latent attention", "compiled, or with root_holds_ends",
                              "compile_layers false (the loss alone), root_holds_ends false");
        }};

inline constexpr ValidityRule kFlexIsLatent = {
    .name = "unsupported: flex attention",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.attention_backend == AttentionBackend::kFlex && !is_latent(job) &&
                 !is_gpt_oss(job.model);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend", "flex without latent attention",
                              "auto or flash");
        }};

}  // namespace shardplan::torchtitan
