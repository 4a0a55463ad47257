// What Megatron-LM's options decide of partition, schedule, experts and overlaps.
#pragma once

#include "estimator/frameworks/pieces/shared_choices.h"

namespace shardplan::megatron {

inline ExpertRows expert_rows(const FrameworkProfile& profile) {
  return {.imbalance = profile.moe_imbalance_factor,
          .spread = profile.moe_load_spread,
          .capacity = profile.moe_capacity_factor};
}

inline ExchangeOverlap exchange_overlap(const FrameworkProfile& profile) {
  return profile.overlap_moe_expert_parallel_comm ? ExchangeOverlap::kMicrobatches
         : profile.moe_shared_expert_overlap      ? ExchangeOverlap::kSharedExperts
                                                  : ExchangeOverlap::kExposed;
}

inline Overlaps overlaps(const Job& job) {
  const FrameworkProfile& profile = job.profile;
  return {.tp = profile.tp_overlap,
          .cp = profile.cp_overlap,
          .exchanges = exchange_overlap(profile),
          .sends = profile.overlap_p2p_comm,
          .gathers = profile.overlap_param_gather,
          .reductions = profile.overlap_grad_reduce,
          .tp_pieces = profile.tp_overlap_pieces};
}

inline constexpr FrameworkChoices kChoices = {.counted_ends = ends_accounted_for,
                                              .microbatch_group = microbatch_group_size,
                                              .keeps_sent_outputs = keeps_pipeline_outputs,
                                              .expert_rows = expert_rows,
                                              .overlaps = overlaps};

inline constexpr FrameworkChoices kLocalChoices = {
    .counted_ends = ends_accounted_for,
    .microbatch_group = microbatch_group_size,
    .keeps_sent_outputs = keeps_pipeline_outputs,
    .expert_rows = [](const FrameworkProfile& profile) -> ExpertRows {
      return {.imbalance = profile.moe_imbalance_factor};
    },
    .overlaps = overlaps_of_data_parallelism};

}  // namespace shardplan::megatron
