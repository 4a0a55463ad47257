// What a step rests on: laws of when a number moves it, and none without a source.
#include "estimator/answer/step_numbers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "data/read/library.h"
#include "tests/estimator/llama_job.h"

namespace shardplan {
namespace {

using Names = std::set<std::string>;

Names names_of_step(const Job& job, const Plan& plan, NumberTable table) {
  Names names;
  for (const StepNumber& number : step_numbers(job, plan)) {
    if (number.table == table) {
      names.insert(std::string(number.name));
    }
  }
  return names;
}

// The numbers that move this part.
Names moving(const Job& job, const Plan& plan, const std::string& part) {
  Names names;
  for (const StepNumber& number : step_numbers(job, plan)) {
    if (std::ranges::find(number.parts, part) != number.parts.end()) {
      names.insert(std::string(name_of(number.table)) + "/" + std::string(number.name));
    }
  }
  return names;
}

Job job_of(const std::string& framework, const std::string& cluster) {
  const Library library;
  return {.model = library.model("llama3-8b").model,
          .cluster = library.cluster(cluster),
          .profile = library.framework(framework),
          .sequence_length = 4096,
          .global_batch = 8};
}

TEST_CASE("a GPU whose rates were measured rests on them, others on shares of the datasheet") {
  const Job measured = job_of("native", "1x1-h200");
  const Names by_rates = moving(measured, {}, "product");
  CHECK(by_rates.contains("gpu/gemm"));
  CHECK_FALSE(by_rates.contains("time/gemm_share"));
  CHECK_FALSE(moving(measured, {}, "attention").contains("time/attention_forward_share"));
  Job unmeasured = measured;
  unmeasured.cluster.gpu.times.reset();
  CHECK(moving(unmeasured, {}, "product").contains("time/gemm_share"));
  CHECK(moving(unmeasured, {}, "attention").contains("time/attention_forward_share"));
  CHECK(names_of_step(unmeasured, {}, NumberTable::kGpu).empty());
  const Names sustained = moving(job_of("native", "1x1-a100"), {}, "product");
  CHECK(sustained.contains("gpu/sustained/bf16"));
  CHECK_FALSE(sustained.contains("time/gemm_share"));
}

TEST_CASE("one GPU rests on no link, and no part moves of which the step has none") {
  const Names numbers = names_of_step(job_of("megatron", "1x1-a100"), {}, NumberTable::kTime);
  for (const char* name : {"nvlink_share", "nvlink5_share", "network_share", "pcie_share",
                           "collective_launch_s", "choice", "host_adam_bytes"}) {
    CAPTURE(name);
    CHECK_FALSE(numbers.contains(name));
  }
  CHECK(numbers.contains("copy_share"));
}

TEST_CASE("collectives rest on the links that they cross") {
  const Plan plan = {.tp = 8, .sequence_parallel = true};
  Job job = job_of("megatron", "2x8-a100");
  CHECK(moving(job, plan, "tp communication").contains("time/nvlink_share"));
  CHECK_FALSE(moving(job, plan, "tp communication").contains("time/network_share"));
  CHECK(moving(job, plan, "dp communication").contains("time/network_share"));
}

TEST_CASE("only an optimizer on the host rests on the host's memory") {
  const Job job = job_of("megatron", "1x8-a100");
  Plan plan = {.zero = 1};
  CHECK_FALSE(moving(job, plan, "optimizer").contains("time/host_adam_bytes"));
  plan.offload.optimizer = 1;
  CHECK(moving(job, plan, "optimizer").contains("time/host_adam_bytes"));
}

TEST_CASE("a step that waits for its host rests on the framework's numbers of it") {
  Job job = job_of("nanotron", "1x1-h200");
  job.sequence_length = 128;
  const Names slow = names_of_step(job, {}, NumberTable::kHost);
  CHECK(slow.contains("layer"));
  CHECK(slow.contains("host_slowdown"));
  CHECK_FALSE(slow.contains("tensor_parallel"));
  job.cluster.host_slowdown = 1e-6;
  CHECK(names_of_step(job, {}, NumberTable::kHost).empty());
}

TEST_CASE("numbers are those of the job, and a number that is twice as large is shown so") {
  Job job = job_of("megatron", "1x1-a100");
  TimeConstants constants = *job.cluster.gpu.constants;
  constants.fused_share *= 2;
  job.cluster.gpu.constants = std::make_shared<const TimeConstants>(constants);
  std::int64_t checked = 0;
  for (const StepNumber& number : step_numbers(job, {})) {
    for (const TimeConstant& constant : kTimeConstants) {
      const auto* const member = std::get_if<double TimeConstants::*>(&constant.member);
      if (number.table == NumberTable::kTime && constant.name == number.name && member != nullptr) {
        CHECK(std::get<double>(number.value) == constants.*(*member));
        ++checked;
      }
    }
  }
  CHECK(checked > 0);
}

}  // namespace
}  // namespace shardplan
