// What transformers' Trainer keeps on the host, and FFNs that take their tokens by tiles.
#pragma once

#include <string>

#include "estimator/plan/job.h"
#include "estimator/validity/text.h"
#include "estimator/validity/validity.h"

namespace shardplan::transformers {

// Saved tensors on the host: not of parts of weights, nor of flat parameters, whose views were not
// followed there; inputs of layers need layers that run again.
inline std::string why_no_offload(const Job& job, const Plan& plan) {
  const bool hosts_inputs = job.profile.activation_offload == ActivationOffload::kLayerInputs;
  return plan.tp > 1                                      ? "tp " + number_text(plan.tp)
         : plan.zero > 0 && job.profile.fsdp_version == 1 ? "fsdp_version 1"
         : hosts_inputs && plan.recompute.granularity != RecomputeGranularity::kFull
             ? "activation_offload layer_inputs without recompute full"
             : "";
}
inline constexpr ValidityRule kActivationsOnHost = {
    .name = "unsupported: offload.activations",
    .reads = {PlanField::kOffload, PlanField::kTp, PlanField::kZero, PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.offload.activations && !why_no_offload(job, plan).empty();
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "offload.activations", "true with " + why_no_offload(job, plan),
                              "false");
        }};

// Every tile has a backward pass of its own, whose gradients DDP's buckets and FSDP's groups would
// take for whole ones.
inline constexpr ValidityRule kTilesOfWholeFfns = {
    .name = "unsupported: ffn_tiles",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.ffn_tiles > 0 &&
                 (job.model.moe.num_experts > 0 || plan.zero > 0 || job.cluster.world_size() > 1);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "ffn_tiles",
                              number_text(job.profile.ffn_tiles) +
                                  (job.model.moe.num_experts > 0 ? " with experts"
                                   : plan.zero > 0 ? " with zero " + number_text(plan.zero)
                                                   : " on several GPUs"),
                              "0, or dense models on one GPU");
        }};

}  // namespace shardplan::transformers
