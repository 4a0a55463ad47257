#include "search/rules.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "estimator/estimate.h"
#include "estimator/validity.h"
#include "tests/search/brute_force.h"
#include "tests/search/jobs.h"

namespace shardplan {

TEST_CASE("a plan that an earlier one stands for has its memory and its time, to the last bit") {
  std::mt19937_64 random(3);
  std::map<std::string, std::int64_t> twins;
  std::int64_t failures = 0;
  for (int round = 0; round < 60; ++round) {
    const Job job = random_small_job(random);
    const SearchSpace space = random_small_space(job, random);
    for (const Plan& plan : all_plans(job, space)) {
      if (first_broken_rule(job, plan) != nullptr) {
        continue;
      }
      for (const EquivalenceRule& rule : equivalence_rules()) {
        const std::optional<Plan> twin = rule.earlier_twin(job, space, plan);
        if (!twin || first_broken_rule(job, *twin) != nullptr) {
          continue;
        }
        ++twins[std::string(rule.name)];
        failures += basis_bytes(estimate_memory(job, plan), MemoryBasis::kAllocated) ==
                            basis_bytes(estimate_memory(job, *twin), MemoryBasis::kAllocated)
                        ? 0
                        : 1;
        failures +=
            estimate_step_time(job, plan).total_s == estimate_step_time(job, *twin).total_s ? 0 : 1;
      }
    }
  }
  CHECK(failures == 0);
  for (const EquivalenceRule& rule : equivalence_rules()) {
    INFO(rule.name);
    CHECK(twins[std::string(rule.name)] > 20);
  }
}

TEST_CASE("the only value of an axis is never dropped") {
  const Job job = llama_8b_job();
  Plan plan;
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
  plan.recompute.granularity = RecomputeGranularity::kFull;
  plan.recompute.method = RecomputeMethod::kBlock;
  plan.recompute.num_layers = 64;
  SearchSpace space = default_space(job);
  plan.schedule = Schedule::k1F1B;
  space.schedule = {plan.schedule};
  space.cp_method = {plan.cp_method};
  space.rank_order = {plan.rank_order};
  space.recompute = {plan.recompute};
  for (const EquivalenceRule& rule : equivalence_rules()) {
    INFO(rule.name);
    CHECK_FALSE(rule.earlier_twin(job, space, plan));
  }
  space = default_space(job);
  for (const EquivalenceRule& rule : equivalence_rules()) {
    INFO(rule.name);
    CHECK(rule.earlier_twin(job, space, plan));
  }
}

}  // namespace shardplan
