// What the native trainer's options decide of partition, schedule and overlaps.
#pragma once

#include "estimator/frameworks/pieces/shared_choices.h"

namespace shardplan::native {

// How many pieces of tokens there are depends on the plan (token_pieces.h).
inline Overlaps overlaps(const Job& job) {
  const FrameworkProfile& profile = job.profile;
  return {.tp = profile.tp_overlap,
          .cp = profile.cp_overlap,
          .gathers = profile.overlap_param_gather,
          .reductions = profile.overlap_grad_reduce};
}

inline constexpr FrameworkChoices kChoices = {.counted_ends = ends_accounted_for,
                                              .microbatch_group = microbatch_group_size,
                                              .overlaps = overlaps};

// The smallest pieces: the products and collectives of each hide the others'.
inline void set_fastest(FrameworkProfile& profile) {
  profile.tensor_parallel_chunk_tokens = 1;
}

}  // namespace shardplan::native
