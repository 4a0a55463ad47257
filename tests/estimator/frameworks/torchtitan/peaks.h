// The law that torchtitan's two descriptions, rows and a timeline, peak alike.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "estimator/answer/stage_memory.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/torchtitan/timeline.h"
#include "estimator/price/price.h"
#include "tests/estimator/allocation_changes.h"

namespace shardplan::torchtitan {

// Under every recompute policy, within a hundredth.
inline void check_peaks_alike(const Job& job, Plan plan) {
  for (const char* policy : {"none", "full", "every_second_matmul", "every_second_layer"}) {
    const std::string_view name = policy;
    plan.recompute = {};
    if (name == "full") {
      plan.recompute.granularity = RecomputeGranularity::kFull;
    } else if (name != "none") {
      plan.recompute = {.granularity = RecomputeGranularity::kSelective, .policy = policy};
    }
    REQUIRE(first_broken_rule(job, plan) == nullptr);
    const PlanPieces whole = plan_pieces(job, plan);
    const double played = static_cast<double>(largest_sum(timeline(job, plan, whole.stages.at(0))));
    const double rows = static_cast<double>(whole.stages.at(0).peaks.peak_bytes);
    CAPTURE(std::string(policy));
    CHECK(played / rows == doctest::Approx(1).epsilon(0.01));
  }
}

}  // namespace shardplan::torchtitan
