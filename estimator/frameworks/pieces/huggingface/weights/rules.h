// What may be loaded beside the text model, and what of it may be trained by name. Sources:
// PyTorch 2.11 torch/csrc/distributed/c10d/reducer.cpp ensure_prior_reduction_finished;
// transformers 5.17 models/auto/modeling_auto.py.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"
#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::huggingface {

inline constexpr ValidityRule kKnownNames = {
    .name = "unsupported: name_rules",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return !job.name_rules.empty() && (job.adapters.rank > 0 || !has_known_names(job.model));
        },
    .explain =
        [](const Job& job, const Plan&) {
          return job.adapters.rank > 0
                     ? not_modelled(job, "name_rules", "of parameters with adapters",
                                    "either of them")
                     : not_modelled(job, "name_rules", "of parameters of " + job.model.family,
                                    "none: the names of its parameters were not read");
        }};

inline constexpr ValidityRule kNamesTrainSomething = {
    .name = "name_rules_train_something",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return !job.name_rules.empty() &&
                 std::ranges::none_of(named_parameters(job), &NamedParameter::is_trained);
        },
    .explain =
        [](const Job& job, const Plan&) {
          const std::vector<NamedParameter> named = named_parameters(job);
          return "no name of a parameter fits, of names such as " + named.front().name + " and " +
                 named.back().name + "; valid: expressions that are found in some of them";
        }};

// Parameters of a tower that ask for gradients, of which batches of text give none.
bool trains_unreached(const Job& job);
// FlashAttention gives attention's sinks no gradient (sink_attention.h).
inline bool trains_unreached_sinks(const Job& job) {
  return job.adapters.rank == 0 && job.profile.attention_backend == AttentionBackend::kFlash &&
         std::ranges::any_of(job.model.layers, &LayerSpec::has_sinks);
}

inline constexpr ValidityRule kUnreachedAreLookedFor = {
    .name = "ddp_looks_for_parameters_without_gradients",
    .reads = {PlanField::kZero, PlanField::kRecompute},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.zero == 0 && job.cluster.world_size() > 1 && trains_unreached(job) &&
                 !finds_unused(job, plan);
        },
    .explain =
        [](const Job& job, const Plan&) {
          const std::string valid =
              "finds_unused true (ddp_find_unused_parameters), recompute none";
          return trains_unreached_sinks(job)
                     ? "DDP over sinks of attention, to which FlashAttention gives no gradients: "
                       "its second step stops; valid: " +
                           valid + ", or attention_backend auto"
                     : "DDP over parameters of the vision tower, which batches of text give no "
                       "gradients: its second step stops; valid: " +
                           valid + ", or a frozen tower";
        }};

inline constexpr ValidityRule kFrozenTowerOnly = {
    .name = "unsupported: vision_tower trained",
    .reads = {},
    .broken = [](const Job& job, const Plan&) { return trains_unreached(job); },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "vision_tower", "parameters that ask for gradients and get none",
                              "a frozen one");
        }};

}  // namespace shardplan::huggingface
