#include "validator/host/backend.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/validator/random_layouts.h"

namespace shardplan {
namespace {

Plan pipeline(std::int64_t pp, Schedule schedule) {
  return {.pp = pp, .schedule = schedule};
}

Plan recomputed(Plan plan, const Recompute& recompute) {
  plan.recompute = recompute;
  return plan;
}

void check_bitwise(const Job& job, const Plan& a, const Plan& b) {
  INFO(text_of(a) << " and" << text_of(b));
  const Batch batch = random_batch(job, 3);
  const StepResult first = run_step(job, a, batch);
  const StepResult second = run_step(job, b, batch);
  CHECK(first.loss == second.loss);
  CHECK(bitwise_equal(first.gradients, second.gradients));
}

}  // namespace

TEST_CASE("one rank computes the loss and every gradient of the reference model") {
  for (const ModelSpec& model : {tiny_model(), wide_model()}) {
    CHECK(difference_from_reference<double>({.job = tiny_job(model, 1)}, {}) == "");
  }
}

TEST_CASE("pipeline schedules give the same bits as one stage") {
  const Job one = tiny_job(tiny_model(), 1);
  const Batch batch = random_batch(one, 3);
  const StepResult expected = run_step(one, {}, batch);
  Plan interleaved = pipeline(2, Schedule::kInterleaved1F1B);
  interleaved.vpp = 2;
  const std::vector<Plan> plans = {pipeline(2, Schedule::kGpipe), pipeline(4, Schedule::k1F1B),
                                   pipeline(4, Schedule::kZbH1), interleaved};
  for (const Plan& plan : plans) {
    INFO(text_of(plan));
    const StepResult result = run_step(tiny_job(tiny_model(), plan.pp), plan, batch);
    CHECK(result.loss == expected.loss);
    CHECK(bitwise_equal(result.gradients, expected.gradients));
  }
}

TEST_CASE("recomputation changes no bit") {
  const Job job = tiny_job(tiny_model(), 4);
  const Plan plain{.tp = 2, .cp = 2, .sequence_parallel = true, .cp_method = CpMethod::kAllGather};
  for (const Recompute& recompute : recompute_choices(false)) {
    check_bitwise(job, plain, recomputed(plain, recompute));
  }
}

TEST_CASE("ZeRO 1 gives the bits of ZeRO 0: gradients, and weights after clipped steps") {
  const Job job = tiny_job(tiny_model(), 4);
  check_bitwise(job, {.zero = 0}, {.zero = 1});
  const auto weights_after = [&](const Plan& plan) {
    HostBackend<double> backend(lower_all(job, plan), DeadMemory::kPoisoned);
    backend.load(initial_tensors(job.model, 7));
    for (int i = 0; i < 3; ++i) { backend.step(random_batch(job, 3), 1e-2); }
    return backend.weights();
  };
  CHECK(bitwise_equal(weights_after({.zero = 0}), weights_after({.zero = 1})));
}

TEST_CASE("one update of AdamW, written out from the reference's gradients") {
  const Job job = tiny_job(tiny_model(), 2);
  const Hyperparameters h{.max_gradient_norm = 0.05};
  HostBackend<double> backend({lower(job, {.tp = 2}, 0, h), lower(job, {.tp = 2}, 1, h)},
                              DeadMemory::kPoisoned);
  Tensors tensors = initial_tensors(job.model, 7);
  backend.load(tensors);
  backend.step(random_batch(job, 3), 1e-2);
  double squares = 0;
  for (const auto& [name, gradient] : reference_of(job).gradients) {
    for (const double value : gradient.values) { squares += value * value; }
  }
  REQUIRE(std::sqrt(squares) > h.max_gradient_norm);
  CHECK(backend.gradient_norm() == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
  for (auto& [name, tensor] : tensors) {
    const double decay = name.ends_with("norm") ? 0 : h.weight_decay;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const double gradient =
          reference_of(job).gradients.at(name).values[i] * h.max_gradient_norm / std::sqrt(squares);
      // The first step's bias corrections leave gradient / |gradient|.
      const double direction = gradient / (std::abs(gradient) + h.adam_epsilon);
      tensor.values[i] -= 1e-2 * (direction + decay * tensor.values[i]);
    }
  }
  CHECK(worst_relative_difference(backend.weights(), tensors) < 1e-8);
  CHECK(bitwise_equal(backend.weights(), backend.master_weights()));
}

TEST_CASE("single precision follows double precision to its own accuracy") {
  const Job job = tiny_job(tiny_model(), 2);
  HostBackend<float> backend(lower_all(job, {.tp = 2}), DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  const double loss = backend.step(random_batch(job, 3), 1e-3);
  CHECK(loss == doctest::Approx(reference_of(job).loss).epsilon(1e-6));
  CHECK(worst_relative_difference(backend.gradients(), reference_of(job).gradients) < 1e-4);
}

TEST_CASE("memory that is used after its tensor has died shows as no number") {
  const Job job = tiny_job(tiny_model(), 1);
  std::vector<Program> programs = lower_all(job, {});
  for (Tensor& tensor : programs[0].tensors) {
    if (tensor.name == "ffn.activation") {
      tensor.dies = tensor.born;  // before the product that reads it
      break;
    }
  }
  HostBackend<double> backend(programs, DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  CHECK(std::isnan(backend.step(random_batch(job, 3), 1e-3)));
}

TEST_CASE("a rank that fails does not leave the others waiting") {
  const Job job = tiny_job(tiny_model(), 4);
  std::vector<Program> programs = lower_all(job, {.tp = 2, .pp = 2, .schedule = Schedule::k1F1B});
  programs[3].operations[5].in.clear();
  programs[3].operations[5].kind = OpKind::kAllReduce;
  programs[3].operations[5].group = 99;
  HostBackend<double> backend(programs, DeadMemory::kKept);
  backend.load(initial_tensors(job.model, 7));
  CHECK_THROWS(backend.step(random_batch(job, 3), 1e-3));
}

}  // namespace shardplan
