// The verdict on a plan's memory, counted by hand.
#include "search/verdict/verdict.h"

#include <doctest/doctest.h>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

// A card of 80 nominal units, of which the driver reports 90.
Job job_of_card() {
  Job job;
  job.cluster.gpu.nominal_memory_bytes = 80;
  job.cluster.gpu.memory_bytes = 90;
  return job;
}

MemoryEstimate memory_of(Fit fit, std::int64_t allocated, std::int64_t used) {
  MemoryEstimate memory;
  StageMemory small;
  small.allocated_bytes = 1;
  small.device_used_bytes = 1;
  StageMemory stage;
  stage.allocated_bytes = allocated;
  stage.reserved_bytes = allocated + 2;
  stage.required_bytes = allocated + 1;
  stage.device_used_bytes = used;
  memory.stages = {small, stage};
  memory.worst_stage = 1;
  memory.fit = fit;
  return memory;
}

}  // namespace

TEST_CASE("a plan fits, is over its share, tight, or does not fit") {
  const Job job = job_of_card();
  const MemoryRule rule;
  CHECK(memory_limit_bytes(job.cluster, rule) == 64);  // 80 % of the nominal 80
  CHECK(verdict_of(job, memory_of(Fit::kFits, 64, 70), rule) == MemoryVerdict::kFits);
  CHECK(verdict_of(job, memory_of(Fit::kFits, 65, 90), rule) == MemoryVerdict::kOver);
  CHECK(verdict_of(job, memory_of(Fit::kTight, 64, 91), rule) == MemoryVerdict::kTight);
  CHECK(verdict_of(job, memory_of(Fit::kTight, 79, 91), rule) == MemoryVerdict::kTight);
  CHECK(verdict_of(job, memory_of(Fit::kDoesNotFit, 64, 99), rule) == MemoryVerdict::kDoesNotFit);
}

TEST_CASE("a rule weighs its total of the fullest stage against its share of its capacity") {
  const Job job = job_of_card();
  const MemoryEstimate memory = memory_of(Fit::kFits, 60, 81);
  for (const auto& [basis, value, capacity] :
       {std::tuple{MemoryBasis::kAllocated, 60, 80}, std::tuple{MemoryBasis::kReserved, 62, 90},
        std::tuple{MemoryBasis::kRequired, 61, 90}, std::tuple{MemoryBasis::kDeviceUsed, 81, 90}}) {
    const MemoryRule rule = {.threshold = 0.5, .basis = basis};
    const Judgement judged = judge_memory(job, memory, rule);
    CHECK(judged.check.value_bytes == value);
    CHECK(judged.check.limit_bytes == capacity / 2);
    CHECK(!judged.check.kept());
    CHECK(judged.verdict == MemoryVerdict::kOver);
    CHECK(judged.left_bytes == 9);
  }
}

TEST_CASE("the card alone refuses nothing that it holds") {
  const Job job = job_of_card();
  CHECK(verdict_of(job, memory_of(Fit::kFits, 88, 90), kCardAlone) == MemoryVerdict::kFits);
  CHECK(verdict_of(job, memory_of(Fit::kTight, 88, 92), kCardAlone) == MemoryVerdict::kTight);
}

}  // namespace shardplan
