#include "estimator/price_floor.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "estimator/validity.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

// One level of a search: axes are opened from the innermost on.
PriceFreedom freedom_of(int level) {
  PriceFreedom open;
  open.master_dtype = {DType::kFp32, DType::kBf16};
  open.exp_avg_dtype = {DType::kFp32, DType::kBf16};
  open.exp_avg_sq_dtype = {DType::kFp32, DType::kBf16};
  open.offload = {{}, {.optimizer = 0.5}, {.optimizer = 1}};
  if (level >= 1) {
    open.zero = {0, 1, 2, 3};
    open.dp_replicate = {1, 2};
    open.grad_dtype = {DType::kFp32, DType::kBf16};
    open.rank_order = {Plan{}.rank_order,
                       {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp}};
  }
  if (level >= 2) {
    open.recompute = {{},
                      {.granularity = RecomputeGranularity::kSelective,
                       .modules = {.layernorm = true, .mlp = true}},
                      {.granularity = RecomputeGranularity::kFull},
                      {.granularity = RecomputeGranularity::kFull,
                       .method = RecomputeMethod::kBlock,
                       .num_layers = 2}};
    open.schedule = {Schedule::kNone, Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved1F1B,
                     Schedule::kZbH1, Schedule::kZbv};
  }
  if (level >= 3) {
    open.micro_batch = {1, 2, 4};
    open.sequence_parallel = {false, true};
    open.cp_method = {CpMethod::kRing, CpMethod::kAllGather, CpMethod::kA2a};
    open.precision = {Precision::kFp32, Precision::kBf16, Precision::kFp8};
  }
  return open;
}

// The plan with a value of each open axis, drawn by a counter.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  template <class Value>
  void choose(const std::vector<Value>& open, Value& axis) {
    if (!open.empty()) {
      axis = open[std::uniform_int_distribution<std::size_t>(0, open.size() - 1)(random_)];
    }
  }
  Plan below(const PriceFreedom& open, Plan plan) {
    choose(open.micro_batch, plan.micro_batch);
    choose(open.zero, plan.zero);
    choose(open.dp_replicate, plan.dp_replicate);
    choose(open.sequence_parallel, plan.sequence_parallel);
    choose(open.cp_method, plan.cp_method);
    choose(open.recompute, plan.recompute);
    choose(open.schedule, plan.schedule);
    choose(open.precision, plan.precision);
    choose(open.grad_dtype, plan.grad_dtype);
    choose(open.master_dtype, plan.master_dtype);
    choose(open.exp_avg_dtype, plan.exp_avg_dtype);
    choose(open.exp_avg_sq_dtype, plan.exp_avg_sq_dtype);
    choose(open.offload, plan.offload);
    choose(open.rank_order, plan.rank_order);
    return plan;
  }

 private:
  std::mt19937_64 random_;
};

TEST_CASE("no valid plan of a branch is below its floors") {
  const Library library;
  RandomJobs random(library, 4);
  Draw draw(5);
  int priced = 0;
  int with_memory = 0;
  for (int i = 0; i < 400; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model == MemoryModel::kFujii2024) {
      continue;
    }
    Plan plan = random.next_plan(drawn.job, drawn.plan);
    PriceTable table = build_price_table(drawn.job);
    for (int level = 0; level <= 3; ++level) {
      const PriceFreedom open = freedom_of(level);
      // What the plan itself says of open axes does not matter, right or wrong.
      plan.dp_replicate = open.dp_replicate.empty() ? plan.dp_replicate : 999983;
      plan.micro_batch = open.micro_batch.empty() ? plan.micro_batch : 999983;
      const std::size_t number = add_freedom(table, open);
      const MemoryFloor memory = memory_floor(table, plan, number);
      const TimeFloor time = time_floor(table, plan, number);
      CHECK(memory.state_bytes <= memory.allocated_bytes);
      CHECK(time.compute_s <= time.step_time_s);
      with_memory += memory.allocated_bytes > 0 ? 1 : 0;
      for (int below = 0; below < 60; ++below) {
        const Plan one = draw.below(open, plan);
        if (first_broken_rule(drawn.job, one) != nullptr) {
          continue;
        }
        ++priced;
        const Price priced_one = price(table, one);
        INFO(drawn.job.profile.name << " case " << i << " level " << level);
        REQUIRE(memory.allocated_bytes <= priced_one.allocated_bytes);
        REQUIRE(time.step_time_s <= priced_one.step_time_s);
      }
    }
  }
  CHECK(priced > 4000);
  CHECK(with_memory > 400);
}

TEST_CASE("a branch in which nothing can be valid has the largest floors") {
  const Library library;
  RandomJobs random(library, 6);
  RandomCase drawn = random.next(library.framework("megatron"));
  PriceTable table = build_price_table(drawn.job);
  PriceFreedom open;
  open.micro_batch = {drawn.job.global_batch * 3};
  const std::size_t number = add_freedom(table, open);
  CHECK(memory_floor(table, drawn.plan, number).allocated_bytes ==
        std::numeric_limits<std::int64_t>::max());
  CHECK(time_floor(table, drawn.plan, number).step_time_s ==
        std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace shardplan
