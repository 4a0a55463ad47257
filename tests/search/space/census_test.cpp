#include "search/space/census.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "search/space/default_space.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

Verdict verdict_of(const Job& job, const PlanSpace& space, const SettledRules& rules,
                   const Plan& plan) {
  if (const ValidityRule* broken = first_broken_rule(job, plan)) {
    return static_cast<Verdict>(broken - validity_rules(job.profile).data());
  }
  if (const EquivalenceRule* twin = first_equivalence(job, space.values, plan)) {
    return rules.num_rules() + static_cast<Verdict>(twin - equivalence_rules().data());
  }
  return rules.distinct();
}

// Of plans taken one by one.
Counts expected_counts(const Job& job, const PlanSpace& space, const SettledRules& rules) {
  Counts counts(static_cast<std::size_t>(rules.distinct()) + 1);
  for (std::int64_t index = 0; index < num_plans(space); ++index) {
    ++counts[static_cast<std::size_t>(verdict_of(job, space, rules, plan_at(space, index)))];
  }
  return counts;
}

Counts census_counts(const SettledRules& rules) {
  Counts counts(static_cast<std::size_t>(rules.distinct()) + 1);
  Census census(rules);
  census.count(rules.root(), rules.root_verdict(), counts);
  return counts;
}

MemoryModel any_profile(std::mt19937_64& random) {
  return kMemoryModels[random() % kMemoryModels.size()].value;
}

}  // namespace

TEST_CASE("counts by rule are those of the one-plan functions, for every profile") {
  std::mt19937_64 random(17);
  std::int64_t plans = 0;
  std::int64_t distinct = 0;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    Job job = random_small_job(random);
    set_framework(job.profile, any_profile(random));
    SearchSpace values = random_small_space(job, random);
    if (round % 10 == 0) {  // values that rules refuse before they divide by them
      values.tp.push_back(0);
      values.cp.push_back(-1);
      values.micro_batch.push_back(0);
      values.pp.push_back(64);
      values.tp.push_back(64);
    }
    const PlanSpace space = plan_space(job, values);
    const SettledRules rules(job, space);
    const Counts counts = census_counts(rules);
    CHECK(counts == expected_counts(job, space, rules));
    plans += num_plans(space);
    distinct += counts.back();
  }
  MESSAGE(plans, " plans, ", distinct, " valid and unlike all before them");
  CHECK(plans > 500'000);
  CHECK(distinct > 5'000);
}

TEST_CASE("orders of ranks are compared for the data-parallel size that a plan states") {
  Job job = llama_8b_job();
  set_framework(job.profile, MemoryModel::kNanotron);
  job.model.layers.resize(10);
  job.cluster.gpus_per_node = 6;
  job.cluster.nvlink_domain = 6;
  job.global_batch = 24;
  SearchSpace values = default_space(job);
  values.tp = {1, 2};
  values.cp = {1};
  values.pp = {2, 6};
  values.vpp = {1, 5};
  values.dp = {0, 2, 4};
  values.micro_batch = {4, 2};
  values.rank_order.push_back({Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp});
  const PlanSpace space = plan_space(job, values);
  const SettledRules rules(job, space);
  CHECK(census_counts(rules) == expected_counts(job, space, rules));
}

TEST_CASE("below any prefix the census finds the plans that a walk of it finds") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    const Job job = random_small_job(random);
    const PlanSpace space = plan_space(job, random_small_space(job, random));
    const SettledRules rules(job, space);
    Census census(rules);
    std::int64_t failures = 0;
    for (std::size_t depth = 0; depth <= kNumAxes; ++depth) {
      const std::int64_t below = rules.plans_below(depth);
      const std::int64_t first =
          static_cast<std::int64_t>(random()) % (num_plans(space) / below) * below;
      const std::int64_t start = first < 0 ? 0 : first;
      Prefix prefix = rules.root();
      Verdict verdict = rules.root_verdict();
      const Prefix chosen = rules.prefix_at(start, depth);
      for (std::size_t axis = rules.next_axis(0); axis < depth; axis = rules.next_axis(axis + 1)) {
        rules.choose(axis, chosen.values[axis], prefix);
        verdict = rules.settle(axis, prefix, verdict);
      }
      std::int64_t distinct = 0;
      for (std::int64_t index = start; index < start + below; ++index) {
        distinct +=
            verdict_of(job, space, rules, plan_at(space, index)) == rules.distinct() ? 1 : 0;
      }
      if (verdict == rules.distinct()) {
        failures += census.distinct_below(chosen) == distinct ? 0 : 1;
      } else {
        failures += distinct == 0 ? 0 : 1;
      }
    }
    CHECK(failures == 0);
  }
}

TEST_CASE("the counts of twenty million million plans sum to the size of the space") {
  Job job = llama_405b_job(2048);
  job.model.moe = {.num_experts = 256,
                   .topk = 8,
                   .expert_ffn = 2048,
                   .shared_ffn = 2048,
                   .shared_gate = false,
                   .router_bias = false};
  job.model.layers.back().is_moe = true;
  const PlanSpace space = plan_space(job, wide_space(job));
  const SettledRules rules(job, space);
  Census census(rules);
  Counts counts(static_cast<std::size_t>(rules.distinct()) + 1);
  census.count(rules.root(), rules.root_verdict(), counts);
  std::int64_t sum = 0;
  for (const std::int64_t plans : counts) { sum += plans; }
  CHECK(sum == num_plans(space));
  CHECK(sum > 10'000'000'000'000);
  CHECK(counts.back() > 1'000'000'000);
}

}  // namespace shardplan
