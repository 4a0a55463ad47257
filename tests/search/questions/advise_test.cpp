#include "search/questions/advise.h"
#include "search/questions/edits.h"
#include "search/space/space.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

namespace shardplan {
namespace {

Plan one_gpu_plan() {
  Plan plan;
  plan.zero = 1;
  return plan;
}

AdviceResult advise_all(const Job& job, const Plan& plan, const AdviceOptions& options = {}) {
  return advise(job, plan, single_edits(job, plan), options);
}

// Everything that is offered says the truth: valid, fits, bytes and speed as the estimate has them.
void check_offered(const AdviceResult& result, const std::vector<Advice>& list) {
  for (const Advice& advice : list) {
    const JudgedPlan& changed = advice.changed;
    CHECK_FALSE(why_invalid(changed.job, changed.plan));
    const MemoryEstimate memory = estimate_memory(changed.job, changed.plan);
    CHECK(memory.fit != Fit::kDoesNotFit);
    CHECK(advice.freed_bytes == basis_bytes(result.base.memory, MemoryBasis::kDeviceUsed) -
                                    basis_bytes(memory, MemoryBasis::kDeviceUsed));
    CHECK(advice.speed_ratio ==
          doctest::Approx(
              estimate_step_time(changed.job, changed.plan).tokens_per_s_per_gpu /
              estimate_step_time(result.base.job, result.base.plan).tokens_per_s_per_gpu));
  }
}

// A change says nothing new where one of the same fields, or of fewer, gives the same.
bool repeats(const Advice& advice, const Advice& before, const std::vector<PlanEdit>& edits) {
  const auto has_field = [&](std::size_t edit) {
    return std::ranges::any_of(
        advice.edits, [&](std::size_t own) { return edits[own].field == edits[edit].field; });
  };
  return std::ranges::all_of(before.edits, has_field) && advice.freed_bytes == before.freed_bytes &&
         advice.changed.time.total_s == before.changed.time.total_s;
}

}  // namespace

TEST_CASE("no advice is given twice, nor a second change with one that alone does the same") {
  Job poor = llama_405b_job(1);
  poor.global_batch = 8;
  Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  for (const std::int64_t micro_batch : {1, 4}) {
    plan.micro_batch = micro_batch;
    for (const Job& of : {poor, job}) {
      for (const AdviceGoal goal : {AdviceGoal::kFaster, AdviceGoal::kLessMemory}) {
        std::vector<PlanEdit> edits = single_edits(of, plan);
        edits.push_back({.field = "nothing", .apply = [](Job&, Plan&) {}});
        edits.push_back(edits.front());
        const AdviceResult result = advise(of, plan, edits, {.goal = goal});
        for (const auto* list : {&result.singles, &result.pairs, &result.nearest}) {
          for (std::size_t at = 0; at < list->size(); ++at) {
            for (std::size_t before = 0; before < at; ++before) {
              CHECK_FALSE(repeats((*list)[at], (*list)[before], edits));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a pair with another field is told, though another pair does the same") {
  Job job = llama_8b_job();
  job.cluster.gpu.memory_bytes = 80 * kGiB;
  Plan plan = one_gpu_plan();
  plan.micro_batch = 2;
  const std::vector<PlanEdit> all = single_edits(job, plan);
  const AdviceResult known = advise(job, plan, all, {});
  REQUIRE_FALSE(known.pairs.empty());
  const std::vector<std::size_t>& pair = known.pairs.front().edits;
  PlanEdit twin = all[pair[0]];
  twin.field = "twin";
  const AdviceResult result = advise(job, plan, {all[pair[0]], all[pair[1]], twin}, {});
  const auto is_told = [&](const std::vector<std::size_t>& edits) {
    return std::ranges::find(result.pairs, edits, &Advice::edits) != result.pairs.end();
  };
  CHECK(is_told({0, 1}));
  CHECK(is_told({1, 2}));
}

TEST_CASE("a plan that does not fit gets single changes with which it does, the fastest first") {
  Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.micro_batch = 4;
  const AdviceResult result = advise_all(job, plan);
  REQUIRE(result.base_valid);
  REQUIRE_FALSE(result.base.fits);
  REQUIRE_FALSE(result.singles.empty());
  CHECK(result.nearest.empty());
  check_offered(result, result.singles);
  check_offered(result, result.pairs);
  for (std::size_t i = 1; i < result.singles.size(); ++i) {
    CHECK(result.singles[i - 1].changed.time.tokens_per_s_per_gpu >=
          result.singles[i].changed.time.tokens_per_s_per_gpu);
  }
  for (const Advice& pair : result.pairs) {
    CHECK(pair.changed.time.tokens_per_s_per_gpu >
          1.01 * result.singles.front().changed.time.tokens_per_s_per_gpu);
  }
}

TEST_CASE("of the singles none that fits and is faster is left out") {
  const Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.tp = 4;
  plan.pp = 2;
  plan.sequence_parallel = true;
  plan.schedule = Schedule::k1F1B;
  AdviceOptions options;
  options.top = 1000;
  const std::vector<PlanEdit> edits = single_edits(job, plan);
  const AdviceResult result = advise(job, plan, edits, options);
  REQUIRE(result.base.fits);
  check_offered(result, result.singles);
  std::set<std::size_t> offered;
  for (const Advice& advice : result.singles) { offered.insert(advice.edits.front()); }
  const double own = estimate_step_time(job, plan).tokens_per_s_per_gpu;
  std::int64_t invalid = 0;
  for (std::size_t edit = 0; edit < edits.size(); ++edit) {
    Job changed_job = job;
    Plan changed = plan;
    edits[edit].apply(changed_job, changed);
    if (why_invalid(changed_job, changed)) {
      ++invalid;
      continue;
    }
    const bool helps = estimate_memory(changed_job, changed).fit != Fit::kDoesNotFit &&
                       estimate_step_time(changed_job, changed).tokens_per_s_per_gpu > 1.001 * own;
    CHECK(helps == offered.contains(edit));
  }
  CHECK(invalid == result.singles_invalid);
  CHECK(std::ssize(edits) == result.singles_tried);
}

TEST_CASE("a micro-batch far too large is answered by one that fits, not by its half alone") {
  Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.micro_batch = 16;
  job.global_batch = 16 * job.cluster.world_size();
  const AdviceResult result = advise_all(job, plan);
  REQUIRE_FALSE(result.base.fits);
  for (const std::int64_t micro_batch : {8, 4, 2, 1}) {
    Plan changed = plan;
    changed.micro_batch = micro_batch;
    const bool offered = std::ranges::any_of(
        result.singles, [&](const Advice& advice) { return advice.changed.plan == changed; });
    CHECK(offered == (estimate_memory(job, changed).fit != Fit::kDoesNotFit));
  }
  CHECK(result.singles.front().changed.plan.micro_batch < 8);
}

TEST_CASE("with less memory as the goal, a plan that fits is offered what uses less") {
  const Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.tp = 4;
  plan.sequence_parallel = true;
  const AdviceResult result = advise_all(job, plan, {.goal = AdviceGoal::kLessMemory});
  REQUIRE(result.base.fits);
  REQUIRE_FALSE(result.singles.empty());
  for (const Advice& advice : result.singles) {
    CHECK(advice.changed.fits);
    CHECK(advice.freed_bytes > 0);
  }
}

TEST_CASE("where no change and no pair fits, the answer is nothing and what comes nearest") {
  Job job = llama_405b_job(1);
  job.global_batch = 8;
  Plan plan = one_gpu_plan();
  plan.tp = 8;
  plan.sequence_parallel = true;
  const AdviceResult result = advise_all(job, plan);
  REQUIRE(result.base_valid);
  CHECK(result.singles.empty());
  CHECK(result.pairs.empty());
  REQUIRE_FALSE(result.nearest.empty());
  for (const Advice& advice : result.nearest) {
    CHECK_FALSE(advice.changed.fits);
    CHECK(advice.freed_bytes > 0);
  }
  for (std::size_t i = 1; i < result.nearest.size(); ++i) {
    CHECK(result.nearest[i - 1].freed_bytes >= result.nearest[i].freed_bytes);
  }
}

TEST_CASE("an invalid plan gets the changes that make it valid and fit") {
  const Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.pp = 4;  // 1F1B is missing
  plan.tp = 2;
  const AdviceResult result = advise_all(job, plan);
  CHECK_FALSE(result.base_valid);
  REQUIRE_FALSE(result.singles.empty());
  for (const Advice& advice : result.singles) {
    CHECK_FALSE(why_invalid(advice.changed.job, advice.changed.plan));
    CHECK(advice.changed.fits);
  }
}

TEST_CASE("layers that the chunks do not divide get lighter ends as one change") {
  Job job = llama_405b_job(2048);
  Plan plan = one_gpu_plan();
  plan.tp = 8;
  plan.pp = 16;
  plan.sequence_parallel = true;
  plan.schedule = Schedule::k1F1B;
  job.cluster.memory_limit_bytes = 200 * kGiB;
  const AdviceResult result = advise_all(job, plan);
  CHECK_FALSE(result.base_valid);
  const bool offered = std::ranges::any_of(result.singles, [&](const Advice& advice) {
    Plan same = advice.changed.plan;
    same.layers_per_chunk.clear();
    return same == plan && advice.changed.plan.layers_per_chunk.front() == 7;
  });
  CHECK(offered);
}

TEST_CASE("advice for random plans of every profile throws nothing and offers what fits") {
  std::mt19937_64 random(7);
  std::int64_t offers = 0;
  for (int i = 0; i < 90; ++i) {
    const Job job = random_small_job(random);
    const PlanSpace space = plan_space(job, random_small_space(job, random));
    const Plan plan = plan_at(
        space, std::uniform_int_distribution<std::int64_t>(0, num_plans(space) - 1)(random));
    const AdviceResult result = advise_all(job, plan);
    for (const std::vector<Advice>* list : {&result.singles, &result.pairs}) {
      for (const Advice& advice : *list) {
        ++offers;
        CHECK_FALSE(why_invalid(advice.changed.job, advice.changed.plan));
        CHECK(advice.changed.memory.fit != Fit::kDoesNotFit);
        CHECK(advice.changed.memory.stages.front().allocated_bytes ==
              estimate_memory(advice.changed.job, advice.changed.plan)
                  .stages.front()
                  .allocated_bytes);
      }
    }
  }
  CHECK(offers > 60);
}

// Sliced as tp by default: with ep 1, or under a tp above 1.
TEST_CASE(
    "a changed tp takes the slices of the experts along, an own etp stays while it is valid") {
  std::mt19937_64 random(11);
  std::int64_t followed = 0;
  std::int64_t kept = 0;
  for (int i = 0; i < 20000; ++i) {
    const Job job = random_small_job(random);
    if (job.model.moe.num_experts == 0) {
      continue;
    }
    const PlanSpace space = plan_space(job, random_small_space(job, random));
    const Plan plan = plan_at(
        space, std::uniform_int_distribution<std::int64_t>(0, num_plans(space) - 1)(random));
    if (why_invalid(job, plan)) {
      continue;
    }
    const bool as_tp = plan.etp == plan.tp && (plan.ep == 1 || plan.tp > 1);
    for (const PlanEdit& edit : single_edits(job, plan)) {
      if (edit.field != "tp" && edit.field != "ep") {
        continue;
      }
      CAPTURE(edit.field);
      Job changed_job = job;
      Plan changed = plan;
      edit.apply(changed_job, changed);
      const auto is_valid = [&](std::int64_t etp) {
        Plan other = changed;
        other.etp = etp;
        return first_broken_rule(changed_job, other) == nullptr;
      };
      const std::int64_t expected = as_tp ? changed.tp : plan.etp;
      const std::int64_t other = as_tp ? plan.etp : changed.tp;
      CHECK(changed.etp == (is_valid(expected) || !is_valid(other) ? expected : other));
      followed += changed.etp == changed.tp && is_valid(changed.tp) ? 1 : 0;
      kept += changed.etp != changed.tp && is_valid(changed.etp) ? 1 : 0;
    }
  }
  CHECK(followed > 20);
  CHECK(kept > 20);
}

TEST_CASE("a share of the memory does not make the card larger") {
  Job job = llama_8b_job();
  job.cluster.gpu.nominal_memory_bytes = std::int64_t{1} << 50;
  Plan plan = one_gpu_plan();
  plan.micro_batch = 4;
  const AdviceOptions options = {.rule = FitRule::kShare, .share = {}};
  const AdviceResult result = advise_all(job, plan, options);
  CHECK_FALSE(result.base.fits);
  REQUIRE_FALSE(result.singles.empty());
  for (const std::vector<Advice>* list : {&result.singles, &result.pairs}) {
    for (const Advice& advice : *list) {
      CHECK(estimate_memory(advice.changed.job, advice.changed.plan).fit != Fit::kDoesNotFit);
    }
  }
}

TEST_CASE("advice is the same with one thread and with two") {
  const Job job = llama_8b_job();
  Plan plan = one_gpu_plan();
  plan.micro_batch = 4;
  AdviceOptions one;
  one.share.threads = 1;
  AdviceOptions two;
  two.share.threads = 2;
  const AdviceResult first = advise_all(job, plan, one);
  const AdviceResult second = advise_all(job, plan, two);
  REQUIRE(first.singles.size() == second.singles.size());
  REQUIRE(first.pairs.size() == second.pairs.size());
  for (std::size_t i = 0; i < first.singles.size(); ++i) {
    CHECK(first.singles[i].edits == second.singles[i].edits);
  }
  for (std::size_t i = 0; i < first.pairs.size(); ++i) {
    CHECK(first.pairs[i].edits == second.pairs[i].edits);
  }
}

}  // namespace shardplan
