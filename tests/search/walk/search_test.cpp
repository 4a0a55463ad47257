#include "search/walk/search.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/layer_partition.h"
#include "search/space/default_space.h"
#include "tests/search/brute_force.h"
#include "tests/search/jobs.h"
#include "tests/search/results.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

namespace {

// The limit that one of the plans just meets, so that both verdicts are exercised; and a card that
// holds any of them, or just one that takes less than most.
void limit_to_one_of(Job& job, const BruteForce& brute, const SearchOptions& options,
                     std::mt19937_64& random) {
  const std::int64_t bytes = brute.plans[brute.plans.size() / 2].basis_bytes;
  const std::int64_t limit =
      static_cast<std::int64_t>(static_cast<double>(bytes) / options.memory_threshold) + 1;
  job.cluster.gpu.nominal_memory_bytes = limit;
  job.cluster.gpu.memory_bytes = limit;
  if (options.basis == MemoryBasis::kAllocated) {
    const std::vector<BrutePlan>& plans = brute.plans;
    job.cluster.gpu.memory_bytes = random() % 2 == 0
                                       ? std::int64_t{1} << 50
                                       : plans[random() % plans.size()].device_used_bytes;
  }
}

}  // namespace

namespace {

// Everything that the search with bounds must have in common with the one without.
void check_answers(const SearchResult& result, const BruteForce& brute,
                   const BruteRanking& expected) {
  REQUIRE(result.top.size() == expected.top.size());
  for (std::size_t at = 0; at < result.top.size(); ++at) {
    CHECK(result.top[at].plan == expected.top[at].plan);
  }
  REQUIRE(result.pareto.size() == expected.pareto.size());
  for (std::size_t at = 0; at < result.pareto.size(); ++at) {
    CHECK(result.pareto[at].plan == expected.pareto[at].plan);
    CHECK(result.pareto[at].price.allocated_bytes == expected.pareto[at].allocated_bytes);
  }
  CHECK(result.plans_in_space == brute.plans_in_space);
  CHECK(total(result) == brute.plans_in_space);
  std::map<std::string, std::int64_t> by_validity = by_rule(result);
  std::map<std::string, std::int64_t> expected_by_validity = expected.pruned;
  std::erase_if(by_validity, [](const auto& row) {
    return row.first.starts_with("cut: ") || row.first == "does_not_fit";
  });
  expected_by_validity.erase("does_not_fit");
  for (const auto& row : expected_by_validity) {
    const auto& rule = row.first;
    const auto& plans = row.second;
    INFO(rule);
    CHECK(by_validity[rule] == plans);
  }
  CHECK(by_validity.size() == expected_by_validity.size());
  CHECK(result.plans_distinct == std::ssize(brute.plans));
  CHECK(result.plans_priced + plans_of_kind(result, "cut: ") == result.plans_distinct);
}

}  // namespace

TEST_CASE("top plans, front and every count equal a brute force with the one-plan functions") {
  std::mt19937_64 random(7);
  std::int64_t plans_compared = 0;
  std::int64_t jobs_with_both_verdicts = 0;
  std::int64_t plans_cut = 0;
  for (int round = 0; round < 2900; ++round) {
    CAPTURE(round);
    Job job = random_small_job(random);
    job.profile.allocator = AllocatorKind::kStaticArenas;  // its replay says nothing here
    SearchSpace space = random_small_space(job, random);
    if (round % 16 != 0) {
      space.tp.resize(1);
      space.pp.resize(1);
      space.cp.resize(1);
    }
    SearchOptions options = {.memory_threshold = 0.8,
                             .top = 1 + static_cast<std::int64_t>(random() % 5),
                             .threads = 1,
                             .distinct = random() % 2 == 0,
                             .pareto = random() % 2 == 0};
    BruteForce brute = brute_force(job, space, options.basis);
    if (!brute.plans.empty()) {
      limit_to_one_of(job, brute, options, random);
      if (job.profile.memory_model == MemoryModel::kDeepspeed) {
        brute = brute_force(job, space, options.basis);  // its start-up looks at the card
      }
    }
    BruteRanking expected = rank(job, brute, options);
    if (!options.pareto) {
      expected.pareto.clear();
    }
    const SearchResult bounded = search_plans(job, space, options);
    check_answers(bounded, brute, expected);
    options.cuts = Cuts::kNone;
    const SearchResult whole = search_plans(job, space, options);
    check_answers(whole, brute, expected);
    CHECK(by_rule(whole) == expected.pruned);
    CHECK(whole.plans_fitting == expected.fitting);
    plans_compared += whole.plans_priced;
    plans_cut += plans_of_kind(bounded, "cut: ");
    jobs_with_both_verdicts +=
        whole.plans_fitting > 0 && whole.plans_fitting < whole.plans_priced ? 1 : 0;
  }
  MESSAGE(plans_compared, " valid plans, ", jobs_with_both_verdicts, " jobs with both verdicts, ",
          plans_cut, " plans cut");
  CHECK(plans_compared > 15000);
  CHECK(jobs_with_both_verdicts > 500);
}

TEST_CASE("under the other bases the top is that of full estimates and the counts bracket theirs") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Job job = random_small_job(random);
    const SearchSpace space = random_small_space(job, random);
    SearchOptions options = {.memory_threshold = 0.9, .top = 3};
    options.basis = std::array{MemoryBasis::kReserved, MemoryBasis::kRequired,
                               MemoryBasis::kDeviceUsed}[static_cast<std::size_t>(round % 3)];
    BruteForce brute = brute_force(job, space, options.basis);
    if (brute.plans.empty()) {
      continue;
    }
    limit_to_one_of(job, brute, options, random);
    const BruteRanking expected = rank(job, brute, options);
    const SearchResult result = search_plans(job, space, options);
    REQUIRE(result.top.size() == expected.top.size());
    for (std::size_t at = 0; at < result.top.size(); ++at) {
      CHECK(result.top[at].plan == expected.top[at].plan);
    }
    CHECK(total(result) == brute.plans_in_space);
    std::map<std::string, std::int64_t> counts = by_rule(result);
    CHECK(result.plans_fitting <= expected.fitting);
    CHECK(expected.fitting <=
          result.plans_fitting + counts["undecided"] + plans_of_kind(result, "cut: "));
  }
}

TEST_CASE("one thread and two give the same result") {
  Job job = llama_8b_job();
  job.cluster.nodes = 2;
  const SearchSpace space = default_space(job);
  for (const MemoryBasis basis : {MemoryBasis::kAllocated, MemoryBasis::kDeviceUsed}) {
    const SearchOptions options = {
        .memory_threshold = 0.8, .basis = basis, .top = 10, .threads = 1};
    SearchOptions two_threads = options;
    two_threads.threads = 2;
    const SearchResult one = search_plans(job, space, options);
    const SearchResult two = search_plans(job, space, two_threads);
    CHECK(one.pruned == two.pruned);
    CHECK(one.plans_fitting == two.plans_fitting);
    CHECK(one.smallest == two.smallest);
    CHECK(same_top(one, two));
    CHECK(one.top.size() == 10);
  }
}

TEST_CASE("the top is sorted, fits, is valid and carries its full estimates") {
  const Job job = llama_8b_job();
  const SearchOptions options;
  const SearchResult result = search_plans(job, default_space(job), options);
  REQUIRE(result.top.size() == 10);
  const std::int64_t limit = memory_limit_bytes(job.cluster, options.rule());
  CHECK(limit == 112'800'000'000);  // 0.8 * 141e9
  for (const RankedPlan& ranked : result.top) {
    CHECK_FALSE(why_invalid(job, ranked.plan));
    CHECK(basis_bytes(ranked.memory, MemoryBasis::kAllocated) == ranked.price.allocated_bytes);
    CHECK(ranked.price.allocated_bytes <= limit);
    CHECK(ranked.time.total_s == ranked.price.step_time_s);
    CHECK(basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed) <= ranked.price.device_used_bytes);
  }
  CHECK(std::ranges::is_sorted(result.top, std::ranges::greater(), [](const RankedPlan& ranked) {
    return ranked.time.tokens_per_s_per_gpu;
  }));
}

TEST_CASE("a plan whose tensors the card holds, but not with the context, is not offered") {
  Job job = llama_8b_job();
  SearchOptions options = {.memory_threshold = 1.0, .top = 1, .pareto = true};
  const SearchResult roomy = search_plans(job, default_space(job), options);
  REQUIRE(roomy.top.size() == 1);
  job.cluster.memory_limit_bytes = roomy.top.front().price.allocated_bytes;
  for (const bool distinct : {false, true}) {
    options.distinct = distinct;
    const SearchResult result = search_plans(job, default_space(job), options);
    REQUIRE(result.top.size() == 1);
    CHECK_FALSE(result.top.front().plan == roomy.top.front().plan);
    CHECK(result.top.front().memory.fit == Fit::kFits);
    CHECK(result.plans_fitting > 0);
    CHECK(total(result) == result.plans_in_space);
    for (const ParetoPoint& point : result.pareto) {
      CHECK(estimate_memory(job, point.plan).fit == Fit::kFits);
    }
  }
}

TEST_CASE("under PyTorch's allocator the top is the best of the plans that the card holds") {
  std::mt19937_64 random(23);
  std::int64_t jobs_with_refused = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    Job job = random_small_job(random);
    const SearchSpace space = random_small_space(job, random);
    const BruteForce brute = brute_force(job, space, MemoryBasis::kAllocated);
    if (brute.plans.size() < 2) {
      continue;
    }
    // A share that leaves all plans, on a card that holds only some of them.
    job.cluster.gpu.nominal_memory_bytes = std::int64_t{1} << 50;
    job.cluster.gpu.memory_bytes = brute.plans[random() % brute.plans.size()].device_used_bytes - 1;
    const SearchOptions options = {
        .top = 3, .threads = 1, .distinct = random() % 2 == 0, .pareto = random() % 2 == 0};
    const BruteRanking expected = rank(job, brute, options);
    const SearchResult result = search_plans(job, space, options);
    REQUIRE(result.top.size() == expected.top.size());
    for (std::size_t at = 0; at < result.top.size(); ++at) {
      CHECK(result.top[at].plan == expected.top[at].plan);
    }
    REQUIRE(result.pareto.size() == (options.pareto ? expected.pareto.size() : 0));
    for (std::size_t at = 0; at < result.pareto.size(); ++at) {
      CHECK(result.pareto[at].plan == expected.pareto[at].plan);
    }
    CHECK(total(result) == brute.plans_in_space);
    jobs_with_refused += expected.fitting < std::ssize(brute.plans) ? 1 : 0;
  }
  CHECK(jobs_with_refused > 80);
}

TEST_CASE("when nothing fits, the valid plan with the least memory is named") {
  Job job = llama_8b_job();
  job.cluster.memory_limit_bytes = kGiB;
  const SearchResult result = search_plans(job, default_space(job), {});
  CHECK(result.top.empty());
  CHECK(result.plans_fitting == 0);
  CHECK_FALSE(why_invalid(job, result.smallest));
  CHECK(result.smallest_price.allocated_bytes > kGiB);
  // One byte less than the smallest needs: nothing. As much as it needs: that plan.
  job.cluster.memory_limit_bytes = std::nullopt;
  job.cluster.gpu.nominal_memory_bytes = result.smallest_price.allocated_bytes - 1;
  CHECK(search_plans(job, default_space(job), {.memory_threshold = 1.0}).plans_fitting == 0);
  job.cluster.gpu.nominal_memory_bytes = result.smallest_price.allocated_bytes;
  const SearchResult found = search_plans(job, default_space(job), {.memory_threshold = 1.0});
  REQUIRE(found.plans_fitting >= 1);
  CHECK(found.top.front().price.allocated_bytes == result.smallest_price.allocated_bytes);
}

TEST_CASE("more memory never makes the best plan slower, and a wider space neither") {
  Job job = llama_8b_job();
  SearchSpace narrow = default_space(job);
  narrow.recompute = {Recompute{}};
  double previous = 0;
  for (const std::int64_t gibibytes : {24, 40, 80, 140}) {
    job.cluster.memory_limit_bytes = gibibytes * kGiB;
    const SearchResult wide = search_plans(job, default_space(job), {.top = 1});
    const SearchResult thin = search_plans(job, narrow, {.top = 1});
    const double fastest = wide.top.empty() ? 0 : wide.top.front().time.tokens_per_s_per_gpu;
    const double fastest_thin = thin.top.empty() ? 0 : thin.top.front().time.tokens_per_s_per_gpu;
    CHECK(fastest >= previous);
    CHECK(fastest >= fastest_thin);
    CHECK(thin.plans_fitting <= wide.plans_fitting);
    previous = fastest;
  }
  CHECK(previous > 0);
}

TEST_CASE("a job that its profile cannot model has no plan, and the reason is counted") {
  Job job = llama_8b_job();
  job.optimizer = OptimizerKind::kAdafactor;
  const SearchResult result = search_plans(job, default_space(job), {});
  CHECK(result.plans_priced == 0);
  CHECK(result.plans_in_space > 0);
  CHECK(by_rule(result)["unsupported: optimizer"] > 0);
}

TEST_CASE("where no plan is valid, the nearest is the first of those that pass the most rules") {
  std::mt19937_64 random(23);
  std::set<std::string> rules;
  for (int i = 0; i < 150; ++i) {
    Job job = random_small_job(random);
    job.global_batch = random() % 2 == 0 ? 1 : job.global_batch;
    SearchSpace space = random_small_space(job, random);
    if (random() % 2 == 0) {
      space.sequence_parallel = {true};
    }
    const SearchResult result = search_plans(job, space, {});
    if (result.plans_distinct > 0) {
      continue;
    }
    const ValidityRule* furthest = nullptr;
    Plan nearest;
    for (const Plan& plan : all_plans(job, space)) {
      const ValidityRule* const broken = first_broken_rule(job, plan);
      REQUIRE(broken != nullptr);
      if (furthest == nullptr || broken > furthest) {  // rows of one table, in the order of trial
        furthest = broken;
        nearest = plan;
      }
    }
    CHECK(result.nearest == nearest);
    CHECK(result.pruned.back().rule.ends_with(furthest->name));
    rules.insert(std::string(furthest->name));
  }
  CHECK(rules.size() > 4);
}

TEST_CASE("a space without plans, and a space without valid plans, have an answer") {
  const Job job = llama_8b_job();
  SearchSpace space = default_space(job);
  space.tp = {3};
  const SearchResult invalid = search_plans(job, space, {});
  CHECK(invalid.plans_in_space > 0);
  CHECK(invalid.plans_priced == 0);
  CHECK(total(invalid) == invalid.plans_in_space);
  CHECK(invalid.top.empty());
  space.tp = {};
  CHECK(search_plans(job, space, {}).plans_in_space == 0);
}

TEST_CASE("sizes beyond counting are pruned by name, not wrapped around to plans that fit") {
  Job job = llama_8b_job();
  job.sequence_length = std::int64_t{1} << 27;
  job.global_batch = std::int64_t{1} << 27;
  SearchSpace space = default_space(job);
  space.micro_batch = {std::int64_t{1} << 20};
  const SearchResult result = search_plans(job, space, {});
  CHECK(result.top.empty());
  CHECK(by_rule(result)["invalid: microbatch_too_large"] > 0);
  CHECK(total(result) == result.plans_in_space);
}

TEST_CASE("405B on 16,384 GPUs: 126 layers go to 16 stages and the best plans use every GPU") {
  const Job job = llama_405b_job(2048);
  SearchSpace space = default_space(job);
  space.tp = {8};
  space.cp = {1};
  space.pp = {16};
  const SearchResult result = search_plans(job, space, {.top = 3});
  REQUIRE(result.top.size() == 3);
  for (const RankedPlan& ranked : result.top) {
    CHECK(ranked.plan.pp == 16);
    const std::vector<std::int64_t> layers = layers_per_chunk(job, ranked.plan);
    CHECK(std::reduce(layers.begin(), layers.end()) == 126);
    CHECK(data_parallel_size(job, ranked.plan) == 128);
  }
}

TEST_CASE(
    "a search tells how far it is while it estimates the plans to show, and when it is done") {
  const Job job = llama_8b_job();
  std::vector<SearchProgress> told;
  const SearchOptions options = {
      .top = 80,  // half a second, told every tenth
      .progress = [&](const SearchProgress& progress) { told.push_back(progress); }};
  CHECK(search_plans(job, default_space(job), options).top.size() == 80);
  std::erase_if(told, [](const SearchProgress& progress) { return progress.to_estimate == 0; });
  REQUIRE(told.size() > 1);
  CHECK(told.front().to_estimate == 80);
  CHECK(told.front().estimated < 80);
  CHECK(told.back().estimated == 80);
}

}  // namespace shardplan
