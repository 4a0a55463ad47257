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
        if (!twin) {
          continue;
        }
        failures += why_invalid(job, *twin) ? 1 : 0;
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

TEST_CASE("the first value of an axis stands for those that mean the same; alone it stands") {
  Job job = llama_8b_job();
  job.profile.memory_model = MemoryModel::kNative;
  Plan plan;
  plan.schedule = Schedule::k1F1B;
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
  plan.recompute.granularity = RecomputeGranularity::kFull;
  plan.recompute.method = RecomputeMethod::kBlock;
  plan.recompute.num_layers = 32;
  REQUIRE_FALSE(why_invalid(job, plan));
  SearchSpace space = default_space(job);
  for (const EquivalenceRule& rule : equivalence_rules()) {
    INFO(rule.name);
    CHECK(rule.earlier_twin(job, space, plan));
  }
  space.schedule = {plan.schedule, Schedule::kNone};
  space.cp_method = {plan.cp_method, CpMethod::kRing};
  space.rank_order = {plan.rank_order, Plan{}.rank_order};
  space.recompute = {plan.recompute};
  for (const EquivalenceRule& rule : equivalence_rules()) {
    INFO(rule.name);
    CHECK_FALSE(rule.earlier_twin(job, space, plan));
  }
}

TEST_CASE("choices with an effect have no twin") {
  Job job = llama_8b_job();
  job.profile.memory_model = MemoryModel::kNative;
  Plan plan;
  plan.cp = 2;
  plan.pp = 4;
  plan.schedule = Schedule::k1F1B;
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kCp, Dimension::kPp, Dimension::kDp, Dimension::kTp};
  plan.recompute.granularity = RecomputeGranularity::kFull;
  plan.recompute.method = RecomputeMethod::kBlock;
  plan.recompute.num_layers = 7;  // of 8
  REQUIRE_FALSE(why_invalid(job, plan));
  const SearchSpace space = default_space(job);
  CHECK(first_equivalence(job, space, plan) == nullptr);
}

}  // namespace shardplan
