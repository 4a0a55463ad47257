// What versions of nanotron do differently in pipelines, and what runs beside a backward pass.
#pragma once

#include "estimator/plan/job.h"

namespace shardplan::nanotron {

inline constexpr FrameworkChoices kChoices = {
    .puts_ends_last = [](const FrameworkProfile& profile) { return profile.ends_on_last_stage; },
    .overlaps = [](const Job& job) -> Overlaps {
      return {.reductions = job.profile.overlap_grad_reduce};
    }};

inline double hand_over_s(const FrameworkProfile& profile) {
  return profile.handover_s;
}

inline void set_fastest(FrameworkProfile& profile) {
  profile.handover_s = 0;
}

}  // namespace shardplan::nanotron
