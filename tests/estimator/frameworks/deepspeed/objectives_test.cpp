// Preferences and rewards under DeepSpeed: a second model beside ZeRO's, and a layer of labels in
// place of the head, counted by hand.
#include <doctest/doctest.h>

#include <string_view>

#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

// Two layers of hidden 512, FFN 1024, 8 heads and 4 key-value heads of 64, a vocabulary of 1024,
// tables apart; two sequences of 512 tokens on each of two ranks.
Job job_for(Objective objective) {
  Job job =
      llama_job("deepspeed", {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, 2, 512, 4);
  job.model.num_kv_heads = 4;
  job.model.vocab = 1024;
  job.profile.objective = objective;
  return job;
}
constexpr std::int64_t kLayers = 2 * (2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512);
constexpr std::int64_t kTable = 1024 * 512;
constexpr std::int64_t kModel = kLayers + 2 * kTable + 512;

Plan pairs(std::int64_t zero) {
  Plan plan = deepspeed_plan(zero);
  plan.micro_batch = 2;
  return plan;
}

std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan, 0).rows) {
    bytes += row.name == name && row.is_alive(Phase::kIdle) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t trained_elements(const Job& job, const Plan& plan) {
  std::int64_t elements = 0;
  for (const std::int64_t each : trained_tensors(job, plan)) { elements += each; }
  return elements;
}

}  // namespace

TEST_CASE("ZeRO-1 and 2 keep a reference model whole in bf16, without an optimizer") {
  for (const std::int64_t zero : {1, 2}) {
    CAPTURE(zero);
    Job job = job_for(Objective::kDpo);
    CHECK(idle_bytes(job, pairs(zero), "reference_model") == 2 * kModel);
    CHECK(trained_elements(job, pairs(zero)) == kModel);
    job.adapters = {.rank = 16, .targets = {true, false, true}};  // which are turned off
    CHECK(idle_bytes(job, pairs(zero), "reference_model") == 0);
    CHECK_FALSE(why_invalid(job, pairs(zero)));
  }
}

TEST_CASE("ZeRO divides a layer of labels with what it trains") {
  const Job job = job_for(Objective::kReward);
  CHECK(trained_elements(job, pairs(1)) == kModel - kTable + 512);
  CHECK(idle_bytes(job, pairs(1), "parameters") == 2 * (kModel - kTable + 512));
}

TEST_CASE("ZeRO-3 is refused where passes without a graph gather") {
  check_refused(
      job_for(Objective::kDpo),
      {{"unsupported: objective", [](Job&, Plan& plan) { plan.zero = 3; }, {"dpo with zero 3"}}},
      pairs(1));
  CHECK_FALSE(why_invalid(job_for(Objective::kOrpo), pairs(3)));
}

}  // namespace shardplan::deepspeed
