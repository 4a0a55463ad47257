// Objectives other than the next token under FSDP.
#pragma once

#include <string>

#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"

namespace shardplan::transformers {

// Forward passes without a graph gather groups whose order of prefetching was not read, and TRL
// shards a reference model as one group (1.8.0 models/utils.py prepare_fsdp); a layer of labels is
// of no group that was read.
inline constexpr ValidityRule kObjectivesOverShards = {
    .name = "unsupported: objective",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return plan.zero > 0 && (huggingface::passes_without_graph(job) > 0 ||
                                   ends_in_labels(job.profile.objective));
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(
              job, "objective",
              huggingface::what_compares(job) + " with zero " + number_text(plan.zero),
              "zero 0, or next_token, orpo and simpo by another loss than asft");
        }};

}  // namespace shardplan::transformers
