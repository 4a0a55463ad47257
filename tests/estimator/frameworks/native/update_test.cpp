// Our own trainer's update: what one parameter moves, and what hides behind units.
#include "estimator/frameworks/native/update.h"

#include <doctest/doctest.h>

#include <vector>

#include "estimator/answer/chunk_work.h"
#include "estimator/answer/model_times.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/rank_updates.h"
#include "tests/measured_host.h"

namespace shardplan::native {
namespace {

TEST_CASE("AdamW in fp32 with bf16 weights moves 34 bytes per parameter, ZeRO divides them") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  const LocalParameters parameters = {.dense = 1'000'000'000, .expert = 0};
  const double whole_s = 34e9 / (4.8e12 * 0.85);
  const auto seconds = [&](std::int64_t zero) {
    const Plan plan = {.zero = zero};
    return optimizer_s(job, plan, {.held = parameters});
  };
  CHECK(seconds(0) == doctest::Approx(whole_s));
  CHECK(seconds(1) == doctest::Approx(whole_s / 8));
  CHECK(seconds(3) == doctest::Approx(whole_s / 8));
}

TEST_CASE("our trainer's gradients and weights wait behind the step unless units overlap") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  const auto exposed = [&](bool reduces, bool gathers, std::int64_t zero) {
    job.profile.overlap_grad_reduce = reduces;
    job.profile.overlap_param_gather = gathers;
    return estimate_step_time(job, {.dp = 8, .zero = zero}).exposed_dp_s;
  };
  const double behind = exposed(false, false, 1);
  const double gathered = exposed(false, true, 1);
  const double both = exposed(true, true, 1);
  // 2 bytes gathered against 4 reduced, and 34 units of which one is never hidden; beside the
  // others products lose.
  const double left = (1 + 33 * (1 - 0.92) / 0.28) / 34;
  CHECK(gathered == doctest::Approx(behind * (2 + left) / 3).epsilon(0.001));
  CHECK(both == doctest::Approx(behind * left).epsilon(0.001));
  CHECK(exposed(true, false, 3) == exposed(false, false, 3));
}

TEST_CASE("the native trainer gathers layers for both passes and sums replicas once a step") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  job.cluster.nodes = 2;
  Plan plan = {.dp_replicate = 2, .zero = 3};
  const RankUpdate update = rank_update(
      job, plan, {.held = {.dense = 4'000'000'000}, .regathered = {.dense = 3'000'000'000}});
  const double inside = 7.0 / 8 / (450e9 * 0.82);
  const double gathers_s = 2 * (4e9 + 3e9) * inside;
  const double reduces_s = 4 * 4e9 * inside;
  const double added_s = 12 * 4e9 / 8 / (4.8e12 * 0.85);
  const double between_nodes_s = 2 * 4 * 4e9 / 8 / 2 / (50e9 * 0.85);
  const auto visible_s = [&](std::int64_t microbatches) {
    return exposed_data_parallel_s(job, plan, update, microbatches, {});
  };
  CHECK(visible_s(1) == doctest::Approx(gathers_s + reduces_s + between_nodes_s).epsilon(0.01));
  CHECK(visible_s(5) - visible_s(3) ==
        doctest::Approx(2 * (gathers_s + reduces_s + added_s)).epsilon(0.01));
  plan.zero = 2;
  CHECK(visible_s(1) ==
        doctest::Approx(2 * 4e9 * inside + reduces_s + between_nodes_s).epsilon(0.01));
}

TEST_CASE(
    "a backward pass gathers neither the ends of the model nor, without stages, its last layer") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  const auto regathered = [&](const Plan& plan) {
    std::vector<std::int64_t> dense;
    for (const RankParameters& rank : rank_parameters(
             job, step_layout(job, plan, layer_kinds(job.model)), model_times(job, plan))) {
      dense.push_back(rank.regathered.dense);
    }
    return dense;
  };
  const std::int64_t layer = 218'112'000;  // Llama-3-8B
  CHECK(regathered({.zero = 3}) == std::vector<std::int64_t>{31 * layer});
  for (const std::int64_t dense : regathered({.pp = 4, .zero = 3, .schedule = Schedule::k1F1B})) {
    CHECK(dense == 8 * layer);
  }
}

}  // namespace
}  // namespace shardplan::native
