// What projections of tokens around routed experts (moe_latent_size) ask of a plan under
// Megatron-LM core_v0.16.1 core/transformer/moe/moe_layer.py.
#pragma once

#include <string>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::megatron {

inline bool has_latent_experts(const Job& job) {
  return job.model.moe.latent > 0 && job.model.has_moe_layers();
}
// "experts of projected tokens (nemotron_h)"
inline std::string latent_experts(const Job& job) {
  return "experts of projected tokens (" + job.model.family + ")";
}

// MoELayer.preprocess refuses shared experts beside the exchange; a layer plan of two microbatches
// (core/models/gpt/fine_grained_callables.py) delays weight gradients, which MoELayer.backward_dw
// does not compute of the projections.
inline constexpr ValidityRule kLatentOverlaps = {
    .name = "latent_experts_need_exposed_exchanges",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return has_latent_experts(job) && (job.profile.moe_shared_expert_overlap ||
                                             job.profile.overlap_moe_expert_parallel_comm);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return std::string(job.profile.moe_shared_expert_overlap
                                 ? "moe_shared_expert_overlap"
                                 : "overlap_moe_expert_parallel_comm") +
                 " with " + latent_experts(job) + "; valid: false";
        }};

// Projections have biases where other linear layers have (add_bias_linear), which no row has.
inline constexpr ValidityRule kLatentBiases = {
    .name = "unsupported: model.moe.biased_experts",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return has_latent_experts(job) && job.model.moe.biased_experts; },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "model.moe.biased_experts", "true with " + latent_experts(job),
                              "false (--disable-bias-linear)");
        }};

// Buckets of Megatron-FSDP are counted of experts that see tokens whole.
inline constexpr ValidityRule kLatentZero = {
    .name = "unsupported: zero",
    .reads = {PlanField::kZero},
    .broken = [](const Job& job,
                 const Plan& plan) { return plan.zero > 1 && has_latent_experts(job); },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "zero", number_text(plan.zero) + " with " + latent_experts(job),
                              "0, 1");
        }};

// Projections are Transformer Engine's whatever the layers around them are; those of core's own
// layers have rows of their own.
inline constexpr ValidityRule kLatentBackends = {
    .name = "unsupported: attention_backend",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return has_latent_experts(job) && has_local_layers(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "attention_backend", "local with " + latent_experts(job),
                              "auto, fused, unfused, flash");
        }};

// Sizes of adapters on experts are those of whole tokens.
inline constexpr ValidityRule kLatentAdapters = {
    .name = "unsupported: trained",
    .reads = {},
    .broken = [](const Job& job,
                 const Plan&) { return has_latent_experts(job) && trains_adapters(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(
              job, "trained",
              std::string(name_of(trained_parameters(job))) + " with " + latent_experts(job),
              "all parameters");
        }};

}  // namespace shardplan::megatron
