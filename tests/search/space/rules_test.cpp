#include "search/space/rules.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "search/space/default_space.h"
#include "tests/search/brute_force.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

namespace shardplan {

namespace {

std::vector<std::string> twins_by_rule(const Job& job, const SearchSpace& space, const Plan& plan) {
  std::vector<std::string> names;
  for (const EquivalenceRule& rule : equivalence_rules()) {
    if (rule.earlier_twin(job, space, plan, rules_that_read(job, rule.axis))) {
      names.emplace_back(rule.name);
    }
  }
  return names;
}

Recompute recompute_all() {
  Recompute recompute;
  recompute.granularity = RecomputeGranularity::kFull;
  return recompute;
}

Recompute recompute_block(std::int64_t num_layers) {
  Recompute recompute;
  recompute.granularity = RecomputeGranularity::kFull;
  recompute.method = RecomputeMethod::kBlock;
  recompute.num_layers = num_layers;
  return recompute;
}

}  // namespace

TEST_CASE("a plan that an earlier one stands for has its memory and its time, to the last bit") {
  std::mt19937_64 random(3);
  std::map<std::string, std::int64_t> twins;
  std::int64_t failures = 0;
  for (int round = 0; round < 40; ++round) {
    Job job = random_small_job(random);
    job.profile.allocator = AllocatorKind::kStaticArenas;  // its replay says nothing here
    SearchSpace space = random_small_space(job, random);
    space.recompute = {Recompute{}, recompute_block(1), recompute_block(2), recompute_all()};
    for (const Plan& plan : all_plans(job, space)) {
      if (first_broken_rule(job, plan) != nullptr) {
        continue;
      }
      for (const EquivalenceRule& rule : equivalence_rules()) {
        const std::optional<Plan> twin =
            rule.earlier_twin(job, space, plan, rules_that_read(job, rule.axis));
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
    CHECK(twins[std::string(rule.name)] > 5);
  }
}

TEST_CASE("the first value of an axis stands for those that mean the same; alone it stands") {
  Job job = llama_8b_job();
  set_framework(job.profile, MemoryModel::kNative);
  Plan plan;
  plan.schedule = Schedule::k1F1B;
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
  plan.recompute = recompute_block(32);
  REQUIRE_FALSE(why_invalid(job, plan));
  SearchSpace space = default_space(job);
  CHECK(twins_by_rule(job, space, plan) ==
        std::vector<std::string>{"schedule_without_pipeline", "cp_method_without_cp",
                                 "rank_order_of_single_ranks", "recompute_block_covers_chunk"});
  CHECK(first_equivalence(job, space, plan)->name == "schedule_without_pipeline");
  space.schedule = {plan.schedule, Schedule::kNone};
  space.cp_method = {plan.cp_method, CpMethod::kRing};
  space.rank_order = {plan.rank_order, Plan{}.rank_order};
  space.recompute = {plan.recompute};
  CHECK(twins_by_rule(job, space, plan).empty());
}

TEST_CASE("choices with an effect have no twin") {
  Job job = llama_8b_job();
  set_framework(job.profile, MemoryModel::kNative);
  Plan plan;
  plan.cp = 2;
  plan.pp = 4;
  plan.schedule = Schedule::k1F1B;
  plan.cp_method = CpMethod::kA2a;
  plan.rank_order = {Dimension::kCp, Dimension::kPp, Dimension::kDp, Dimension::kTp};
  plan.recompute = recompute_block(7);  // of 8
  REQUIRE_FALSE(why_invalid(job, plan));
  const SearchSpace space = default_space(job);
  CHECK(first_equivalence(job, space, plan) == nullptr);
}

}  // namespace shardplan
