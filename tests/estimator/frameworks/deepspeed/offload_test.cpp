// DeepSpeed's offload: what leaves the GPU and what comes instead, counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/answer/step_time.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/host_memory.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/price/price.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kN = 8'030'261'248;                     // Llama-3-8B
constexpr std::int64_t kTable = 128'256LL * 4096;              // its largest tensor
constexpr std::int64_t kGroupsOnEight = kN / 8;                // no padding: 8 divides all tensors
constexpr std::int64_t kPersistent = std::int64_t{65} * 4096;  // norms, below 100,000 elements each

Plan plan_with(std::int64_t zero, double optimizer, bool parameters = false) {
  Plan plan = deepspeed_plan(zero);
  plan.offload = {.optimizer = optimizer, .parameters = parameters};
  return plan;
}

std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan, 0).rows) {
    bytes += row.name == name && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::string broken(const Job& job, const Plan& plan) {
  const std::optional<InvalidReason> reason = why_invalid(job, plan);
  return reason ? std::string(reason->rule) : "";
}

}  // namespace

// stage_1_and_2.py, __init__: single_partition_of_fp32_groups on self.device, "cpu";
// temp_grad_buffer_for_gpu_offload on the GPU.
TEST_CASE("between steps ZeRO-1 and 2 with offload keep the weights and one buffer on the GPU") {
  for (const std::int64_t zero : {1, 2}) {
    CAPTURE(zero);
    std::int64_t bytes = 0;
    for (const StateRow& row : state_of_stage(deepspeed_job(1), plan_with(zero, 1), 0).rows) {
      bytes += row.is_alive(Phase::kIdle) && row.name != "cublas_workspace" ? row.total_bytes() : 0;
    }
    CHECK(bytes == 2 * kN + 2 * kTable);
  }
}

// stage3.py: parts in bf16, the bucket, persistent parameters gathered (_post_step); with
// offload_param no parts.
TEST_CASE("between steps ZeRO-3 with offload keeps parts of the weights, its bucket and norms") {
  for (const bool parameters : {false, true}) {
    CAPTURE(parameters);
    std::int64_t bytes = 0;
    for (const StateRow& row :
         state_of_stage(deepspeed_job(1), plan_with(3, 1, parameters), 0).rows) {
      bytes += row.is_alive(Phase::kIdle) && row.name != "cublas_workspace" ? row.total_bytes() : 0;
    }
    CHECK(bytes == (parameters ? 0 : 2 * kGroupsOnEight) + 2 * 500'000'000 + 2 * kPersistent);
  }
}

// _create_fp32_partitions: the first int((1 - ratio) * groups) sub-groups stay, with main
// parameters, moments and gradients in fp32. On one GPU each group closes with the tensor that
// reaches a billion elements.
TEST_CASE("a ratio leaves whole sub-groups on the GPU, rounded down") {
  const Job job = deepspeed_job(1, "deepspeed", "1x1-h100");
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, plan_with(3, 0));
  REQUIRE(groups.size() == 8);
  CHECK(deepspeed_sub_groups_on_gpu(plan_with(3, 0), std::ssize(groups)) == 8);
  CHECK(deepspeed_sub_groups_on_gpu(plan_with(3, 0.7), std::ssize(groups)) == 2);  // 2.4
  CHECK(deepspeed_sub_groups_on_gpu(plan_with(3, 1), std::ssize(groups)) == 0);
  const Plan some = plan_with(3, 0.7);
  CHECK(held_bytes(job, some, Phase::kIdle, "optimizer.fp32_partition") ==
        4 * (groups[0] + groups[1]));
  CHECK(held_bytes(job, some, Phase::kIdle, "optimizer.exp_avg") == 4 * (groups[0] + groups[1]));
  CHECK(held_bytes(job, some, Phase::kIdle, "step.fp32_gradients") == 4 * (groups[0] + groups[1]));
  CHECK(held_bytes(job, some, Phase::kOptimizer, "step.square_roots") <= 4 * groups[1]);
}

// partition_grads: a gradient in bf16 beside its norm in fp64, 250 million elements at most, or
// beside itself in fp32; parts of the table on one GPU have 525 million.
TEST_CASE("a gradient leaves ZeRO-3 by way of the GPU") {
  const PlayedRun run =
      deepspeed_run(deepspeed_job(1, "deepspeed", "1x1-h100"), plan_with(3, 1), 0, 1);
  std::size_t at = 0;
  std::int64_t widest = 0;
  std::int64_t leaving = 0;
  for (const AllocationEvent& event : run.events) {
    while (at + 1 < run.labels.size() && run.labels[at + 1].after_id < event.id) { ++at; }
    if (event.bytes > 0 && run.labels[at].label == &text_of(TapeRow::kStepNorms)) {
      widest = std::max(widest, event.bytes);
    }
    if (event.bytes > 0 && run.labels[at].label == &text_of(TapeRow::kWideGradients)) {
      leaving = std::max(leaving, event.bytes);
    }
  }
  CHECK(widest == 8 * std::int64_t{250'000'000});
  CHECK(leaving == 4 * kTable);
}

// partition_parameters.py, NoGatherHandle: a parameter on the host is copied, one on the GPU used.
TEST_CASE("on one GPU parameters are gathered only where they lie on the host") {
  const Job job = deepspeed_job(1, "deepspeed", "1x1-h100");
  CHECK(held_bytes(job, plan_with(3, 1), Phase::kForward, "gathered_parameters") == 0);
  CHECK(held_bytes(job, plan_with(3, 1, true), Phase::kForward, "gathered_parameters") > 0);
}

TEST_CASE("offloading more never takes more of the GPU between steps") {
  for (const std::int64_t zero : {2, 3}) {
    const auto idle = [&](const Plan& plan) {
      return estimate_memory(deepspeed_job(2), plan).stages.front().state_bytes;
    };
    CAPTURE(zero);
    CHECK(idle(plan_with(zero, 1)) < idle(plan_with(zero, 0)));
    if (zero == 3) {
      CHECK(idle(plan_with(3, 1, true)) < idle(plan_with(3, 1)));
      CHECK(idle(plan_with(3, 0, true)) < idle(plan_with(3, 0)));
    }
  }
}

TEST_CASE("a part of the optimizer and parameters are offloaded under ZeRO-3 alone") {
  const Job job = deepspeed_job(1);
  CHECK(broken(job, plan_with(2, 1)).empty());
  CHECK(broken(job, plan_with(3, 0.5, true)).empty());
  CHECK(broken(job, plan_with(2, 0.5)) == "partial_offload_needs_zero_3");
  CHECK(broken(job, plan_with(2, 1, true)) == "offloaded_parameters_need_zero_3");
  CHECK(broken(job, plan_with(3, 2)) == "offload_optimizer_is_a_share");
}

// Of Llama-3-8B on eight GPUs a rank has 1,003,782,656 parameters: 3.74 GiB in fp32, 1.87 in bf16,
// moments 7.48; the table 0.98 in bf16.
TEST_CASE("page-locked host memory takes powers of two, one tensor at a time") {
  Job job = deepspeed_job(1);
  const std::int64_t gib = std::int64_t{1} << 30;
  const std::int64_t moments = 8 * kGroupsOnEight;
  CHECK(host_bytes(job, plan_with(2, 0)) == 0);
  CHECK(host_bytes(job, plan_with(2, 1)) == (4 + 4 + 2 + 1) * gib + moments);
  // One sub-group, whose main parameters are not page-locked; gradients in fp32 and bf16.
  CHECK(host_bytes(job, plan_with(3, 1)) == 4 * kGroupsOnEight + moments + (4 + 2) * gib);
  job.profile.offload_pin_memory = false;
  CHECK(host_bytes(job, plan_with(2, 1)) == (4 + 4 + 2) * kGroupsOnEight + 2 * kTable + moments);
  CHECK(host_bytes(job, plan_with(3, 1)) == (4 + 4 + 2) * kGroupsOnEight + moments);
}

// Counted: 42 bytes of host memory a parameter, on one thread 6.5 GB/s.
TEST_CASE("the host's update takes as long as its threads, no longer than its memory") {
  const auto optimizer_s = [](std::int64_t threads) {
    Job job = deepspeed_job(1);
    job.profile.host_threads = threads;
    job.cluster.host_memory_bytes_per_s = 65e9;
    return estimate_step_time(job, plan_with(2, 1)).optimizer_s;
  };
  CHECK(optimizer_s(1) == doctest::Approx(42.0 * kGroupsOnEight / 6.5e9).epsilon(0.02));
  CHECK(optimizer_s(1) > 9 * optimizer_s(10));
  CHECK(optimizer_s(10) == doctest::Approx(optimizer_s(64)));
}

TEST_CASE("an estimate says that the host's update has one thread, unless it is told of more") {
  Job job = deepspeed_job(1);
  const auto says_so = [&](const Plan& plan) {
    return std::ranges::any_of(
        estimate_memory(job, plan).assumptions, [](const Assumption& assumption) {
          return assumption.text.find("--set host_threads=N") != std::string::npos;
        });
  };
  CHECK(says_so(plan_with(2, 1)));
  CHECK_FALSE(says_so(plan_with(2, 0)));
  job.profile.host_threads = 8;
  CHECK_FALSE(says_so(plan_with(2, 1)));
}

TEST_CASE("what a search prices of offloaded plans is what the estimate says") {
  const Job job = deepspeed_job(2);
  PriceTable table = build_price_table(job);
  for (const Plan& plan : {plan_with(1, 1), plan_with(2, 1), plan_with(3, 1), plan_with(3, 0.5),
                           plan_with(3, 1, true), plan_with(3, 0, true)}) {
    CAPTURE(plan.zero);
    const Price priced = price(table, plan);
    CHECK(priced.step_time_s == estimate_step_time(job, plan).total_s);
    CHECK(priced.allocated_bytes == estimate_memory(job, plan).stages.front().allocated_bytes);
  }
}

}  // namespace shardplan::deepspeed
