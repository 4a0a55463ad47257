// DeepSpeed without ZeRO, counted by hand: bf16 weights, and of each an fp32 copy and two moments.
#include <doctest/doctest.h>

#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/units.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

// Two layers of hidden 512, FFN 1024 and 8 heads of 64, one sequence of 512 tokens a rank.
Job small_job(std::int64_t gpus) {
  return llama_job("deepspeed", {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, gpus, 512,
                   gpus);
}

std::int64_t elements_of(const Job& job, const Plan& plan) {
  std::int64_t elements = 0;
  for (const std::int64_t each : trained_tensors(job, plan)) { elements += each; }
  return elements;
}

std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan, 0).rows) {
    bytes += row.name == name && row.is_alive(Phase::kIdle) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t peak_of(const Job& job, const Plan& plan, MomentKind moment) {
  return state_of_stage(job, plan, 0).played->moments[static_cast<std::size_t>(moment)];
}

}  // namespace

TEST_CASE("without ZeRO every rank of DeepSpeed has all copies and moments from the start") {
  const Plan plan = deepspeed_plan(0);
  for (const std::int64_t gpus : {1, 4}) {
    CAPTURE(gpus);
    const Job job = small_job(gpus);
    const std::int64_t elements = elements_of(job, plan);
    CHECK(why_invalid(job, plan) == std::nullopt);
    CHECK(idle_bytes(job, plan, "optimizer.fp32_partition") == 4 * elements);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * elements);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == 4 * elements);
    CHECK(idle_bytes(job, plan, "gradients.of_weights") == 0);
  }
}

// Zeros in bf16 and in fp32 stand for gradients when the moments are made.
TEST_CASE("DeepSpeed without ZeRO makes its state by a step of zeros as it starts") {
  const Job job = small_job(1);
  const Plan plan = deepspeed_plan(0);
  const std::int64_t elements = elements_of(job, plan);
  const std::int64_t tensors = std::ssize(trained_tensors(job, plan));
  const std::int64_t start = peak_of(job, plan, MomentKind::kStartUp);
  CHECK(start >= (2 + 4 + 2 + 4 + 8) * elements);
  // What the allocator's blocks have beyond a tensor is at most 1 MiB.
  CHECK(start <= (2 + 4 + 2 + 4 + 8) * elements + kMiB * tensors);
}

// The step: bf16 gradients beside fp32 ones. The reduction: a copy of all gradients.
TEST_CASE("DeepSpeed without ZeRO steps with gradients in fp32 beside those of the model") {
  const Job job = small_job(2);
  const Plan plan = deepspeed_plan(0);
  const std::int64_t elements = elements_of(job, plan);
  const std::int64_t step = peak_of(job, plan, MomentKind::kOptimizer);
  const std::int64_t reduction = peak_of(job, plan, MomentKind::kReduction);
  CHECK(step >= (2 + 4 + 8 + 2 + 4) * elements);
  CHECK(reduction >= (2 + 4 + 8 + 2 + 2) * elements);
  CHECK(step - reduction >= 2 * elements - 512);
  CHECK(step - reduction <= 2 * elements + 512 * std::ssize(trained_tensors(job, plan)));
}

TEST_CASE("paged moments without ZeRO are those of each large tensor") {
  Job job = small_job(1);
  job.optimizer = OptimizerKind::kPagedAdamW8bit;
  const Plan plan = deepspeed_plan(0);
  std::int64_t large = 0;
  for (const std::int64_t each : trained_tensors(job, plan)) {
    large += each >= 100'000 ? each : 0;
  }
  CHECK(managed_bytes(job, plan) == 2 * large);
}

TEST_CASE("the optimizer is offloaded by ZeRO alone") {
  check_refused(small_job(1),
                {{"unsupported: offload.optimizer",
                  [](Job&, Plan& plan) { plan.offload.optimizer = 1; },
                  {"zero 0", "zero 1, 2 or 3"}}},
                deepspeed_plan(0));
}

TEST_CASE("without ZeRO gradients are summed behind a step's last backward pass") {
  const Job job = small_job(4);
  const StepTime without = estimate_step_time(job, deepspeed_plan(0));
  CHECK(without.exposed_dp_s > 0);
  CHECK(without.exposed_dp_s < estimate_step_time(job, deepspeed_plan(1)).exposed_dp_s);
}

}  // namespace shardplan::deepspeed
