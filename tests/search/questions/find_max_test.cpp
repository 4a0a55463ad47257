#include "search/questions/find_max.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "data/read/library.h"
#include "tests/search/jobs.h"

namespace shardplan {

namespace {

Plan two_by_two_by_two() {
  Plan plan;
  plan.tp = 2;
  plan.pp = 2;
  plan.zero = 1;
  plan.sequence_parallel = true;
  plan.schedule = Schedule::k1F1B;
  return plan;
}

MemoryEstimate estimate_of(const SizedPlan& at) {
  return estimate_memory(at.job, at.plan);
}

}  // namespace

TEST_CASE("the largest micro-batch fits, one more does not, and the step count stays") {
  const Job job = llama_8b_job();
  const Plan plan = two_by_two_by_two();
  const SearchOptions options;
  const std::int64_t limit = memory_limit_bytes(job.cluster, options.rule());
  const FindMaxResult found = find_max(job, plan, FindMaxAxis::kMicroBatch, options);
  CHECK(found.step == 1);
  REQUIRE(found.largest);
  REQUIRE(found.next);
  CHECK(found.next->value == found.largest->value + 1);
  for (const SizedPlan& at : {*found.largest, *found.next}) {
    CHECK(at.plan.micro_batch == at.value);
    CHECK_FALSE(why_invalid(at.job, at.plan));
    CHECK(num_microbatches(at.job, at.plan) == num_microbatches(job, plan));
    const std::int64_t bytes =
        basis_bytes(estimate_memory(at.job, at.plan), MemoryBasis::kAllocated);
    CHECK((bytes <= limit) == (at.value == found.largest->value));
  }
}

TEST_CASE("the largest sequence is a multiple of what the plan divides it by") {
  Job job = llama_8b_job();
  Plan plan = two_by_two_by_two();
  plan.cp = 2;
  for (const MemoryBasis basis : {MemoryBasis::kAllocated, MemoryBasis::kDeviceUsed}) {
    const SearchOptions options = {.memory_threshold = 0.9, .basis = basis};
    const std::int64_t limit = memory_limit_bytes(job.cluster, options.rule());
    const FindMaxResult found = find_max(job, plan, FindMaxAxis::kSequenceLength, options);
    CHECK(found.step % 4 == 0);  // 2 cp, and cp tp
    REQUIRE(found.largest);
    REQUIRE(found.next);
    CHECK(found.largest->value % found.step == 0);
    CHECK(found.next->value == found.largest->value + found.step);
    CHECK_FALSE(why_invalid(found.largest->job, found.largest->plan));
    CHECK(found.largest->job.sequence_length == found.largest->value);
    CHECK(basis_bytes(estimate_of(*found.largest), basis) <= limit);
    CHECK(basis_bytes(estimate_of(*found.next), basis) > limit);
  }
}

TEST_CASE("degrees of three cut a sequence into multiples of 18: 2 cp pieces, and cp tp rows") {
  Job job = llama_8b_job();
  job.cluster.gpus_per_node = 9;
  job.cluster.nvlink_domain = 9;
  job.model.num_heads = 24;
  job.model.num_kv_heads = 6;
  job.model.hidden = 3072;
  job.model.ffn = 12288;
  job.sequence_length = 7200;
  const Plan plan = {.tp = 3, .cp = 3, .zero = 1, .sequence_parallel = true};
  REQUIRE_FALSE(why_invalid(job, plan));
  const FindMaxResult found = find_max(job, plan, FindMaxAxis::kSequenceLength, {});
  CHECK(found.step == 18);
  REQUIRE(found.largest);
  REQUIRE(found.next);
  CHECK(found.largest->value > 7200);
}

TEST_CASE("a micro-batch grows in steps that the profile accepts") {
  Job job = llama_8b_job();
  job.sequence_length = 4098;  // fp8 products want rows in multiples of 8: 4 sequences of these
  job.global_batch = 256;
  Plan plan;
  plan.zero = 1;
  plan.precision = Precision::kFp8;
  plan.micro_batch = 4;
  REQUIRE_FALSE(why_invalid(job, plan));
  const FindMaxResult found = find_max(job, plan, FindMaxAxis::kMicroBatch, {});
  CHECK(found.step == 4);
  REQUIRE(found.next);
  CHECK(found.next->value % 4 == 0);
  CHECK_FALSE(why_invalid(found.next->job, found.next->plan));
}

TEST_CASE("the maximum grows with memory and with recomputation") {
  Job job = llama_8b_job();
  Plan plan = two_by_two_by_two();
  std::int64_t previous = 0;
  for (const std::int64_t gibibytes : {60, 80, 141, 192}) {
    job.cluster.memory_limit_bytes = gibibytes * kGiB;
    const FindMaxResult found = find_max(job, plan, FindMaxAxis::kSequenceLength, {});
    const std::int64_t value = found.largest ? found.largest->value : 0;
    CHECK(value >= previous);
    previous = value;
  }
  plan.recompute.granularity = RecomputeGranularity::kFull;
  const FindMaxResult full = find_max(job, plan, FindMaxAxis::kSequenceLength, {});
  REQUIRE(full.largest);
  CHECK(full.largest->value > previous);
}

TEST_CASE(
    "a plan whose smallest size does not fit has no maximum, and the reason is its estimate") {
  Job job = llama_8b_job();
  job.cluster.memory_limit_bytes = kGiB;
  for (const FindMaxAxis axis : {FindMaxAxis::kMicroBatch, FindMaxAxis::kSequenceLength}) {
    const FindMaxResult found = find_max(job, two_by_two_by_two(), axis, {});
    CHECK_FALSE(found.largest);
    REQUIRE(found.next);
    CHECK(found.next->value == found.step);
    CHECK(basis_bytes(estimate_of(*found.next), MemoryBasis::kAllocated) > kGiB);
  }
}

TEST_CASE("the maximum is on the card even where the share alone would let more pass") {
  Job job = llama_8b_job();
  job.cluster.gpu.nominal_memory_bytes = std::int64_t{1} << 50;
  for (const FindMaxAxis axis : {FindMaxAxis::kMicroBatch, FindMaxAxis::kMicroBatchOfGlobalBatch,
                                 FindMaxAxis::kSequenceLength}) {
    const FindMaxResult found = find_max(job, two_by_two_by_two(), axis, {});
    REQUIRE(found.largest);
    REQUIRE(found.next);
    CHECK(estimate_of(*found.largest).fit == Fit::kFits);
    CHECK(estimate_of(*found.next).fit != Fit::kFits);
  }
}

TEST_CASE("a trainer's largest sequence and micro-batch fit, what is behind them does not") {
  Job job = llama_8b_job();
  job.profile = Library().profile("transformers").profile;
  job.cluster.memory_limit_bytes = 80 * kGiB;
  job.sequence_length = 2048;
  for (const std::int64_t zero : {0, 3}) {
    Plan plan = {.zero = zero, .grad_dtype = job.profile.default_grad_dtype};
    job.adapters = {.rank = zero == 0 ? 16 : 0, .targets = {true, true, true, true}};
    for (const FindMaxAxis axis : {FindMaxAxis::kSequenceLength, FindMaxAxis::kMicroBatch}) {
      CAPTURE(zero);
      const FindMaxResult found = find_max(job, plan, axis, {});
      REQUIRE(found.largest);
      REQUIRE(found.next);
      CHECK(found.next->value == found.largest->value + found.step);
      CHECK(fits(found.largest->job, estimate_of(*found.largest), {}));
      CHECK_FALSE(fits(found.next->job, estimate_of(*found.next), {}));
    }
  }
}

TEST_CASE("an invalid plan has no maximum to look for") {
  Plan plan = two_by_two_by_two();
  plan.tp = 3;
  CHECK_THROWS_AS(find_max(llama_8b_job(), plan, FindMaxAxis::kMicroBatch, {}), std::logic_error);
}

}  // namespace shardplan
