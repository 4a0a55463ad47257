#include "validator/host_backend.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

// Loss and gradients of the plan against the reference model's.
void check_against_reference(const Job& job, const Plan& plan) {
  INFO(text_of(plan));
  const Batch batch = random_batch(job, 3);
  const ReferenceStep expected =
      reference_step(job.model, initial_tensors(job.model, 7), batch, {});
  const StepResult result = run_step(job, plan, batch);
  CHECK(std::abs(result.loss - expected.loss) < 1e-10 * expected.loss);
  CHECK(worst_relative_difference(result.gradients, expected.gradients) < 1e-10);
}

}  // namespace

TEST_CASE("one rank computes the loss and every gradient of the reference model") {
  check_against_reference(tiny_job(tiny_model(), 1), {});
}

TEST_CASE("two ranks") {
  const Job job = tiny_job(tiny_model(), 2);
  check_against_reference(job, {.tp = 2});
  check_against_reference(job, {.tp = 2, .sequence_parallel = true});
  check_against_reference(job, {.pp = 2, .schedule = Schedule::k1F1B});
  check_against_reference(job, {.zero = 0});
  check_against_reference(job, {.zero = 1});
  check_against_reference(job, {.cp = 2, .cp_method = CpMethod::kAllGather});
}

}  // namespace shardplan
