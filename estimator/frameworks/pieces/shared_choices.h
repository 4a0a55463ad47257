// Choices of frameworks that have the same options.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan {

inline CountedEnds ends_accounted_for(const FrameworkProfile& profile) {
  return {.embedding = profile.account_for_embedding_in_split ? 1 : 0,
          .head = profile.account_for_loss_in_split ? 1 : 0};
}

inline std::int64_t microbatch_group_size(const FrameworkProfile& profile) {
  return profile.microbatch_group_size;
}

inline bool keeps_pipeline_outputs(const FrameworkProfile& profile) {
  return !profile.deallocate_pipeline_outputs;
}

// Of options, only those of gathers and reductions.
inline Overlaps overlaps_of_data_parallelism(const Job& job) {
  return {.gathers = job.profile.overlap_param_gather,
          .reductions = job.profile.overlap_grad_reduce};
}

}  // namespace shardplan
