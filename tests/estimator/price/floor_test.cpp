#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/price/fitting_floor.h"
#include "estimator/price/memory_floor.h"
#include "estimator/price/time_floor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "estimator/answer/stage_memory.h"
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
  for (int i = 0; i < 780; ++i) {
    if (i == 520) {  // torchtitan's replicas of shards with any microbatch among them
      random = RandomJobs(library, 106);
      draw = Draw(107);
    }
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

// One or two values on every axis, so that all plans of the branch can be priced. `only_state`:
// those that fitting_floor takes.
PriceFreedom small_freedom(std::mt19937_64& random, bool only_state) {
  PriceFreedom open;
  const auto choose = [&](auto& axis, const auto& values) {
    using Values = std::remove_reference_t<decltype(axis)>;
    Values all = values;
    std::shuffle(all.begin(), all.end(), random);
    if (random() % 2 == 0) {
      axis.assign(all.begin(), all.begin() + 2);
    }
  };
  const PriceFreedom wide = freedom_of(3);
  choose(open.zero, wide.zero);
  choose(open.dp_replicate, wide.dp_replicate);
  choose(open.grad_dtype, wide.grad_dtype);
  choose(open.master_dtype, wide.master_dtype);
  choose(open.exp_avg_dtype, wide.exp_avg_dtype);
  choose(open.exp_avg_sq_dtype, wide.exp_avg_sq_dtype);
  choose(open.offload, wide.offload);
  if (!only_state) {
    choose(open.micro_batch, wide.micro_batch);
    choose(open.sequence_parallel, wide.sequence_parallel);
    choose(open.cp_method, wide.cp_method);
    choose(open.precision, wide.precision);
    choose(open.recompute, wide.recompute);
    choose(open.schedule, wide.schedule);
    choose(open.rank_order, wide.rank_order);
  }
  return open;
}

template <class Value, class Visit>
void each_value(const std::vector<Value>& open, Value& axis, const Visit& visit) {
  const Value own = axis;
  for (std::size_t at = 0; at < std::max<std::size_t>(open.size(), 1); ++at) {
    axis = open.empty() ? own : static_cast<Value>(open[at]);
    visit();
  }
  axis = own;
}

// visit(plan) for every plan of the branch.
template <class Visit>
void each_plan(const PriceFreedom& open, Plan at, const Visit& visit) {
  const auto state = [&] {
    each_value(open.zero, at.zero, [&] {
      each_value(open.dp_replicate, at.dp_replicate, [&] {
        each_value(open.grad_dtype, at.grad_dtype, [&] {
          each_value(open.master_dtype, at.master_dtype, [&] {
            each_value(open.exp_avg_dtype, at.exp_avg_dtype, [&] {
              each_value(open.exp_avg_sq_dtype, at.exp_avg_sq_dtype,
                         [&] { each_value(open.offload, at.offload, [&] { visit(at); }); });
            });
          });
        });
      });
    });
  };
  each_value(open.micro_batch, at.micro_batch, [&] {
    each_value(open.sequence_parallel, at.sequence_parallel, [&] {
      each_value(open.cp_method, at.cp_method, [&] {
        each_value(open.precision, at.precision, [&] {
          each_value(open.recompute, at.recompute, [&] {
            each_value(open.schedule, at.schedule,
                       [&] { each_value(open.rank_order, at.rank_order, state); });
          });
        });
      });
    });
  });
}

// What lives between the actions, of the fullest stage in the fullest phase.
std::int64_t state_bytes(const Job& job, const Plan& plan) {
  std::int64_t most = 0;
  for (const StagePieces& stage : plan_pieces(job, plan).stages) {
    most = std::max(most, std::ranges::max(stage.state.bytes.alive));
  }
  return most;
}

TEST_CASE("every floor by itself is no more than the least of all plans of its branch") {
  const Library library;
  RandomJobs random(library, 12);
  std::mt19937_64 bits(12);
  int branches = 0;
  int with_experts = 0;
  int bounding = 0;  // memory floors beyond nothing
  for (int i = 0; i < 700; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model == MemoryModel::kFujii2024) {
      continue;
    }
    const Plan plan = random.next_plan(drawn.job, drawn.plan);
    PriceTable table = build_price_table(drawn.job);
    const PriceFreedom open = small_freedom(bits, false);
    const std::size_t number = add_freedom(table, open);
    const std::int64_t state =
        state_floor_bytes(table, plan, number, std::numeric_limits<std::int64_t>::max());
    const std::int64_t weights = state_floor_bytes(table, plan, number, 0);
    CHECK(weights <= state);
    CHECK((weights > 0) == (state > 0));
    const MemoryFloor memory = memory_floor(table, plan, number);
    const TimeFloor time = time_floor(table, plan, number);
    CHECK(state == memory.state_bytes);
    int valid = 0;
    each_plan(open, plan, [&](const Plan& one) {
      if (first_broken_rule(drawn.job, one) != nullptr || (bits() % 8 != 0 && valid > 32)) {
        return;
      }
      ++valid;
      const Price priced = price(table, one);
      INFO(drawn.job.profile.name << " case " << i);
      REQUIRE(state <= state_bytes(drawn.job, one));
      REQUIRE(memory.allocated_bytes <= priced.allocated_bytes);
      REQUIRE(time.compute_s <= priced.step_time_s);
      REQUIRE(time.step_time_s <= priced.step_time_s);
    });
    branches += valid > 0 ? 1 : 0;
    with_experts += valid > 0 && drawn.job.model.moe.num_experts > 0 ? 1 : 0;
    bounding += valid > 0 && state > 0 && time.step_time_s > 0 ? 1 : 0;
  }
  CHECK(branches > 150);
  CHECK(with_experts > 40);
  CHECK(bounding > 80);
}

TEST_CASE("no plan that fits is faster or smaller than the floor of what fits") {
  const Library library;
  RandomJobs random(library, 13);
  std::mt19937_64 bits(13);
  int bounded = 0;  // branches of which some plans fit and some do not
  int with_experts = 0;
  int out_of_reach = 0;  // floors that say that nothing fits
  for (int i = 0; i < 2600; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model == MemoryModel::kFujii2024) {
      continue;
    }
    const Plan plan = random.next_plan(drawn.job, drawn.plan);
    PriceTable table = build_price_table(drawn.job);
    const PriceFreedom open = small_freedom(bits, true);
    const std::size_t number = add_freedom(table, open);
    if (!opens_only_state(table, number)) {
      continue;
    }
    std::vector<Price> prices;
    each_plan(open, plan, [&](const Plan& one) {
      if (first_broken_rule(drawn.job, one) == nullptr) {
        prices.push_back(price(table, one));
      }
    });
    if (prices.empty()) {
      continue;
    }
    const std::int64_t limit =
        prices[bits() % prices.size()].allocated_bytes - (bits() % 4 == 0 ? 1 : 0);
    const FittingFloor floor =
        fitting_floor(table, plan, number, limit, FittingQuestion::kTimeAndMemory);
    const FittingFloor time = fitting_floor(table, plan, number, limit, FittingQuestion::kTime);
    CHECK(time.step_time_s == floor.step_time_s);
    CHECK(time.allocated_bytes <= floor.allocated_bytes);
    CHECK((time.allocated_bytes > limit) == (floor.allocated_bytes > limit));
    std::size_t fitting = 0;
    for (const Price& priced : prices) {
      if (priced.allocated_bytes <= limit) {
        ++fitting;
        INFO(drawn.job.profile.name << " case " << i);
        REQUIRE(floor.allocated_bytes <= priced.allocated_bytes);
        REQUIRE(floor.step_time_s <= priced.step_time_s);
      }
    }
    bounded += fitting > 0 && fitting < prices.size() ? 1 : 0;
    with_experts += drawn.job.model.moe.num_experts > 0 ? 1 : 0;
    out_of_reach += floor.allocated_bytes == std::numeric_limits<std::int64_t>::max() ? 1 : 0;
  }
  CHECK(bounded > 100);
  CHECK(with_experts > 40);
  CHECK(out_of_reach > 5);
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
