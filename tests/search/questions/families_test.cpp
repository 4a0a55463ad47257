#include "search/questions/families.h"
#include "search/space/default_space.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace shardplan {
namespace {

template <class Value>
FamilyAxis axis_of(const std::string& name, std::vector<Value> SearchSpace::*field,
                   Value Plan::*of_plan, const SearchSpace& space) {
  FamilyAxis axis = {.name = name, .values = {}, .only = {}, .value_of = {}};
  for (std::size_t value = 0; value < (space.*field).size(); ++value) {
    axis.values.push_back(std::to_string(value));
  }
  axis.only = [field](const SearchSpace& whole, std::size_t value) {
    SearchSpace part = whole;
    part.*field = {(whole.*field)[value]};
    return part;
  };
  axis.value_of = [values = space.*field, of_plan](const Plan& plan) {
    return static_cast<std::size_t>(std::ranges::find(values, plan.*of_plan) - values.begin());
  };
  return axis;
}

std::vector<FamilyAxis> axes_of(const SearchSpace& space) {
  return {axis_of("tp", &SearchSpace::tp, &Plan::tp, space),
          axis_of("pp", &SearchSpace::pp, &Plan::pp, space),
          axis_of("cp", &SearchSpace::cp, &Plan::cp, space),
          axis_of("micro_batch", &SearchSpace::micro_batch, &Plan::micro_batch, space),
          axis_of("cp_method", &SearchSpace::cp_method, &Plan::cp_method, space),
          axis_of("schedule", &SearchSpace::schedule, &Plan::schedule, space),
          axis_of("recompute", &SearchSpace::recompute, &Plan::recompute, space)};
}

void check_axis(const Job& job, const SearchSpace& space, const FamilyAxis& axis,
                const std::vector<PlanFamily>& families, const SearchOptions& options) {
  SearchOptions all = options;
  all.top = 1;
  all.cuts = Cuts::kNone;
  std::size_t value = 0;
  for (const PlanFamily& family : families) {
    if (family.axis != axis.name) {
      continue;
    }
    CAPTURE(axis.name);
    CAPTURE(value);
    const SearchResult alone = search_plans(job, axis.only(space, value), all);
    CHECK(family.value == axis.values[value]);
    CHECK(family.plans == alone.plans_in_space);
    CHECK(family.fitting == alone.plans_fitting);
    CHECK((family.reason == "does_not_fit") ==
          (alone.plans_fitting == 0 && alone.plans_priced > 0));
    if (alone.top.empty()) {
      CHECK_FALSE(family.reason.empty());
      CHECK(family.least_bytes == alone.smallest_price.allocated_bytes);
    } else {
      CHECK(family.best_tokens_per_s_per_gpu == alone.top.front().time.tokens_per_s_per_gpu);
    }
    ++value;
  }
  CHECK(value == axis.values.size());
}

}  // namespace

TEST_CASE("a family says what a search of its part of the space says") {
  Job job = llama_8b_job();
  job.cluster.memory_limit_bytes = 40 * kGiB;
  SearchSpace space = default_space(job);
  space.micro_batch = {1, 2};
  space.recompute.erase(space.recompute.begin() + 3, space.recompute.end());
  space.vpp = {1, 2};
  space.cp = {1, 2};
  const std::vector<FamilyAxis> axes = axes_of(space);
  for (const SearchOptions& options :
       {SearchOptions{.memory_threshold = 0.5},
        SearchOptions{.memory_threshold = 0.8, .basis = MemoryBasis::kDeviceUsed}}) {
    const std::vector<PlanFamily> families = plan_families(job, space, axes, options);
    for (const FamilyAxis& axis : axes) { check_axis(job, space, axis, families, options); }
  }
}

TEST_CASE("families of random spaces say what searches of their parts say") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 10; ++i) {
    const Job job = random_small_job(random);
    const SearchSpace space = random_small_space(job, random);
    const std::vector<FamilyAxis> axes = axes_of(space);
    const SearchOptions options = {.memory_threshold = i % 2 == 0 ? 0.8 : 0.3};
    const std::vector<PlanFamily> families = plan_families(job, space, axes, options);
    for (const FamilyAxis& axis : axes) { check_axis(job, space, axis, families, options); }
  }
}

TEST_CASE("families of an axis are the space, and the nearest value that passes does fit") {
  Job job = llama_8b_job();
  job.cluster.memory_limit_bytes = 40 * kGiB;
  SearchSpace space = default_space(job);
  space.recompute = {Recompute{}};
  space.vpp = {1};
  space.pp = {1, 2};
  const FamilyAxis tp = axis_of("tp", &SearchSpace::tp, &Plan::tp, space);
  const SearchOptions options;
  const std::vector<PlanFamily> families = plan_families(job, space, {tp}, options);
  REQUIRE(families.size() == space.tp.size());
  const SearchResult whole = search_plans(job, space, options);
  std::int64_t plans = 0;
  double best = 0;
  std::int64_t rejected = 0;
  for (const PlanFamily& family : families) {
    plans += family.plans;
    best = std::max(best, family.best_tokens_per_s_per_gpu);
    if (family.fitting == 0) {
      ++rejected;
      CHECK_FALSE(family.reason.empty());
      const auto nearest =
          std::ranges::find(families, family.nearest, [](const PlanFamily& f) { return f.value; });
      REQUIRE(nearest != families.end());
      CHECK(nearest->fitting > 0);
    }
  }
  CHECK(rejected > 0);
  CHECK(plans == whole.plans_in_space);
  CHECK(best == whole.top.front().time.tokens_per_s_per_gpu);
}

}  // namespace shardplan
