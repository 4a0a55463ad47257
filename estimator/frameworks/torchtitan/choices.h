// What torchtitan's options, and what its versions always do, decide of partition, schedule and
// overlaps.
#pragma once

#include "estimator/frameworks/pieces/shared_choices.h"

namespace shardplan::torchtitan {

inline bool compiles_layers(const FrameworkProfile& profile) {
  return profile.compile && profile.compile_layers;
}
inline bool compiles_loss(const FrameworkProfile& profile) {
  return profile.compile && profile.compile_loss;
}

inline constexpr FrameworkChoices kChoices = {.counted_ends = ends_accounted_for,
                                              .reshards_forward =
                                                  [](const FrameworkProfile& profile) {
                                                    return profile.reshard_after_forward ==
                                                           ReshardAfterForward::kAlways;
                                                  },
                                              .keeps_sent_outputs = keeps_pipeline_outputs,
                                              .launches_compiled = compiles_layers,
                                              .overlaps = overlaps_of_data_parallelism};

}  // namespace shardplan::torchtitan
