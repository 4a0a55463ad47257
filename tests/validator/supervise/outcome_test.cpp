#include "validator/supervise/outcome.h"

#include <doctest/doctest.h>

#include <limits>

#include "validator/supervise/fault.h"
#include "validator/supervise/message.h"

namespace shardplan {

TEST_CASE("what a rank says about its run is read back equal") {
  RankResult result;
  result.losses = {11.9, 0.1 + 0.2, std::numeric_limits<double>::denorm_min()};
  result.gradient_norms = {1.0 / 7};
  result.step_times_s = {1.0 / 3};
  result.attention = "own kernels: no cuDNN";
  result.products = "0 of 12 on measured algorithms";
  result.machine = "NVIDIA H200, driver 580";
  result.memory = {.persistent_arena = 1,
                   .dynamic_arena = 2,
                   .context = 3,
                   .libraries = 4,
                   .communicators = 5,
                   .growth = 6,
                   .unattributed = -7,
                   .device_used = 14,
                   .device_total = std::numeric_limits<std::int64_t>::max(),
                   .groups = {{.kind = GroupKind::kTp, .bytes = 3},
                              {.kind = GroupKind::kDenseShard, .bytes = 2}}};
  const RankResult read = result_of(text_of(result));
  CHECK(read.losses == result.losses);
  CHECK(read.gradient_norms == result.gradient_norms);
  CHECK(read.step_times_s == result.step_times_s);
  CHECK(text_of(read) == text_of(result));
  CHECK(read.memory.groups[1].kind == GroupKind::kDenseShard);
  CHECK(result_of(text_of(RankResult{})).losses.empty());
}

TEST_CASE("a failure is read back with whatever its reason holds") {
  const Failure failure = {.status = RunStatus::kOom,
                           .reason = "a\ttab, a \\ and\nan end = of line",
                           .process = ProcessState::kLost,
                           .requested_bytes = 1 << 20,
                           .free_bytes = 0,
                           .needed_factor = 1.25,
                           .is_echo = true};
  const std::string text = text_of(failure);
  CHECK(text.find('\n') == std::string::npos);
  const Failure read = failure_of(text);
  CHECK(read.reason == failure.reason);
  CHECK(read.process == ProcessState::kLost);
  CHECK(read.requested_bytes == failure.requested_bytes);
  CHECK(read.free_bytes == failure.free_bytes);
  CHECK(read.needed_factor == failure.needed_factor);
  CHECK(read.is_echo);
  CHECK_FALSE(failure_of(text_of(Failure{})).requested_bytes.has_value());
}

TEST_CASE("text that no worker writes is refused by name") {
  for (const char* text : {"", "x", "status=great", "status=ok\tprocess=1\techo=yes", "status=\\",
                           "status=oom\tprocess=1\techo=0\treason=\tneeded_factor="}) {
    CHECK_THROWS_AS(failure_of(text), std::invalid_argument);
  }
  CHECK_THROWS_WITH(Message("n=12x").integer("n"), "message: n: found '12x', expected a number");
}

TEST_CASE("the words of a fault") {
  const Fault fault = fault_of("stop run=2 rank=3 step=1 operation=40");
  CHECK(fault.kind == FaultKind::kStop);
  CHECK(fault.run == 2);
  CHECK(fault.rank == 3);
  CHECK(fault.phase == RunPhase::kSteps);
  CHECK(fault.operation == 40);
  CHECK(fault_of("exit phase=commit").phase == RunPhase::kCommit);
  CHECK_THROWS_AS(fault_of("burn"), std::invalid_argument);
  CHECK_THROWS_AS(fault_of("kill rank=-1"), std::invalid_argument);
  strike_if_due(fault, RunPhase::kSteps, 1, 39);  // not its place: nothing happens
  strike_if_due(fault, RunPhase::kCommit, 0, -1);
}

}  // namespace shardplan
