#include "search/questions/sweep.h"
#include "search/space/default_space.h"
#include "search/space/resize.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

SearchSpace small_space(const Job& job) {
  SearchSpace space = default_space(job);
  space.recompute = {Recompute{}};
  space.vpp = {1};
  space.pp = {1, 2};
  return space;
}

Job job_on(std::int64_t num_gpus, double usd_per_gpu_hour) {
  Job job = llama_8b_job();
  job.cluster = *resized(job.cluster, num_gpus);
  job.cluster.usd_per_gpu_hour = usd_per_gpu_hour;
  return job;
}

SweepPoint point_of(double tokens_per_s, std::int64_t nodes, const SweepTarget& target,
                    double usd_per_gpu_hour) {
  SweepPoint point;
  point.best = RankedPlan{};
  point.job = job_on(8 * nodes, usd_per_gpu_hour);
  point.tokens_per_s = tokens_per_s;
  point.usd_per_hour = 8.0 * static_cast<double>(nodes) * usd_per_gpu_hour;
  point.cost_usd = target.tokens / tokens_per_s / 3600 * point.usd_per_hour;
  point.reached = tokens_per_s >= target.tokens_per_s         ? Reached::kYes
                  : 1.2 * tokens_per_s >= target.tokens_per_s ? Reached::kWithinSpread
                                                              : Reached::kNo;
  return point;
}

}  // namespace

TEST_CASE("a point is the search's best plan, and its interval is the spread's") {
  const Job job = job_on(8, 2.5);
  const StepTimeSpread spread = {.low = 0.9, .high = 1.25, .num_runs = 7, .of = "runs"};
  SweepTarget target;
  target.tokens = 1e9;
  const SearchSpace space = small_space(job);
  const SearchOptions options;
  const SweepPoint point = sweep_point(job, space, options, target, spread);
  const SearchResult result = search_plans(job, space, options);
  REQUIRE(point.best);
  CHECK(point.best->plan == result.top.front().plan);
  CHECK(point.tokens_per_s == 8 * result.top.front().time.tokens_per_s_per_gpu);
  CHECK(point.low_tokens_per_s == doctest::Approx(point.tokens_per_s / 1.25));
  CHECK(point.high_tokens_per_s == doctest::Approx(point.tokens_per_s / 0.9));
  CHECK(point.usd_per_hour == doctest::Approx(20));
  CHECK(point.days == doctest::Approx(1e9 / point.tokens_per_s / 86400));
  CHECK(point.cost_usd == doctest::Approx(point.days * 24 * 20));
}

TEST_CASE("days for tokens and their cost are speeds that a cluster reaches or does not") {
  const Job job = job_on(8, 2);
  const SearchSpace space = small_space(job);
  const SearchOptions options;
  const StepTimeSpread spread = {.low = 0.5, .high = 2, .num_runs = 1, .of = "runs"};
  const double speed = sweep_point(job, space, options, {}, spread).tokens_per_s;
  const auto reached = [&](double asked_tokens_per_s) {
    SweepTarget by_days;
    by_days.tokens = asked_tokens_per_s * 86400;
    by_days.days = 1;
    SweepTarget by_cost;
    by_cost.tokens = asked_tokens_per_s * 3600;
    by_cost.cost_usd = 16;  // an hour of eight GPUs
    const Reached by_time = sweep_point(job, space, options, by_days, spread).reached;
    CHECK(sweep_point(job, space, options, by_cost, spread).reached == by_time);
    return by_time;
  };
  CHECK(reached(0.49 * speed) == Reached::kYes);
  CHECK(reached(1.5 * speed) == Reached::kWithinSpread);
  CHECK(reached(2.1 * speed) == Reached::kNo);
}

TEST_CASE("the cheapest cluster that surely reaches the target comes before one that may") {
  SweepTarget target;
  target.tokens_per_s = 100;
  target.tokens = 1e9;
  const auto chosen = [&](const std::vector<SweepPoint>& points) {
    return choose_cluster(points, target);
  };
  const SweepPoint slow = point_of(50, 1, target, 1);
  const SweepPoint maybe = point_of(90, 2, target, 1);
  const SweepPoint enough = point_of(150, 4, target, 1);
  const SweepPoint dear = point_of(300, 8, target, 3);
  CHECK(chosen({slow, maybe, dear, enough}) == 3);
  CHECK(chosen({slow, maybe}) == 1);
  CHECK_FALSE(chosen({slow}).has_value());
  SweepPoint empty;
  empty.reached = Reached::kYes;
  CHECK_FALSE(chosen({empty}).has_value());
}

TEST_CASE("a price that is not known is not low: of those without any the fewest GPUs are chosen") {
  SweepTarget target;
  target.tokens_per_s = 100;
  target.tokens = 1e9;
  const SweepPoint free = point_of(150, 2, target, 0);
  const SweepPoint priced = point_of(150, 4, target, 3);
  const SweepPoint larger = point_of(300, 8, target, 0);
  CHECK(choose_cluster({free, priced}, target) == 1);
  CHECK(choose_cluster({larger, free}, target) == 1);
  target.tokens = 0;
  CHECK(choose_cluster({free, priced}, target) == 1);
}

TEST_CASE("what headroom says still fits, and the bytes left are the limit's") {
  const Job job = llama_8b_job();
  SearchOptions options;
  options.top = 2;
  const SearchResult result = search_plans(job, small_space(job), options);
  const std::vector<Headroom> headroom = headroom_of(job, result.top, options);
  REQUIRE(headroom.size() == 2);
  for (std::size_t i = 0; i < headroom.size(); ++i) {
    const RankedPlan& ranked = result.top[i];
    CHECK(headroom[i].left_bytes == memory_limit_bytes(job.cluster, options.rule()) -
                                        basis_bytes(ranked.memory, options.basis));
    CHECK(headroom[i].left_bytes >= 0);
    CHECK(headroom[i].largest_micro_batch >= ranked.plan.micro_batch);
    CHECK(headroom[i].largest_sequence_length >= job.sequence_length);
  }
}

}  // namespace shardplan
