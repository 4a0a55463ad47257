#include "validator/host_backend.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <set>

#include "estimator/validity.h"
#include "tests/validator/layouts.h"
#include "validator/checks.h"

namespace shardplan {
namespace {

constexpr double kTolerance = 1e-10;  // relative, of float64 sums in another order

Plan pipeline(std::int64_t pp, Schedule schedule) {
  return {.pp = pp, .schedule = schedule};
}

Plan recomputed(Plan plan, const Recompute& recompute) {
  plan.recompute = recompute;
  return plan;
}

const std::vector<Recompute>& recomputes() {
  static const std::vector<Recompute> all = {
      {},
      {.granularity = RecomputeGranularity::kSelective, .modules = {.layernorm = true}},
      {.granularity = RecomputeGranularity::kSelective, .modules = {.core_attn = true}},
      {.granularity = RecomputeGranularity::kSelective, .modules = {.mlp = true}},
      {.granularity = RecomputeGranularity::kSelective,
       .modules = {.core_attn = true, .layernorm = true, .mlp = true}},
      {.granularity = RecomputeGranularity::kFull},
      {.granularity = RecomputeGranularity::kFull, .num_layers = 2},
      {.granularity = RecomputeGranularity::kFull,
       .method = RecomputeMethod::kBlock,
       .num_layers = 1},
  };
  return all;
}

// Choices in turn from a counter-based generator: the same list on every machine.
class Chooser {
 public:
  template <class Value>
  Value one_of(const std::vector<Value>& values) {
    const double uniform = initial_value("choice", next_++, 11) / 0.4 + 0.5;
    const auto index = static_cast<std::size_t>(uniform * static_cast<double>(values.size()));
    return values[std::min(index, values.size() - 1)];
  }

 private:
  std::int64_t next_ = 0;
};

struct Layout {
  Job job;
  Plan plan;
};

Layout random_layout(Chooser& choose) {
  ModelSpec model = choose.one_of<ModelSpec>({tiny_model(), wide_model()});
  model.tied_embeddings = choose.one_of<int>({0, 1}) == 1;
  Plan plan;
  plan.tp = choose.one_of<std::int64_t>({1, 2, 4, 8});
  plan.cp = choose.one_of<std::int64_t>({1, 1, 2, 4});
  plan.pp = choose.one_of<std::int64_t>({1, 2, 4});
  plan.vpp = plan.pp == 1 ? 1 : choose.one_of<std::int64_t>({1, 2});
  const std::int64_t dp = choose.one_of<std::int64_t>({1, 2, 4});
  plan.zero = choose.one_of<std::int64_t>({0, 1, 2, 3});
  plan.dp_replicate = plan.zero == 0 ? 1 : choose.one_of<std::int64_t>({1, 2});
  plan.micro_batch = choose.one_of<std::int64_t>({1, 2});
  plan.grad_dtype = choose.one_of<DType>({DType::kFp32, DType::kFp32, DType::kBf16});
  plan.exp_avg_dtype = choose.one_of<DType>({DType::kFp32, DType::kBf16});
  plan.exp_avg_sq_dtype = plan.exp_avg_dtype;
  plan.sequence_parallel = choose.one_of<int>({0, 1}) == 1;
  plan.cp_method = choose.one_of<CpMethod>({CpMethod::kAllGather, CpMethod::kRing});
  plan.recompute = choose.one_of(recomputes());
  plan.schedule =
      plan.pp == 1 ? Schedule::kNone
      : plan.vpp > 1
          ? Schedule::kInterleaved1F1B
          : choose.one_of<Schedule>({Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1});
  if (choose.one_of<int>({0, 1}) == 1) {
    plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kTp, Dimension::kCp};
  }
  Job job = tiny_job(model, plan.tp * plan.cp * plan.pp * dp);
  job.profile.vocab_multiple = choose.one_of<std::int64_t>({1, 8});
  return {.job = job, .plan = plan};
}

// Loss and gradients of the reference, which depend on the model alone.
const ReferenceStep& reference_of(const Job& job) {
  static std::map<std::pair<std::string, bool>, ReferenceStep> steps;
  const auto key = std::pair(job.model.name, job.model.tied_embeddings);
  if (!steps.contains(key)) {
    steps[key] = reference_step(job.model, initial_tensors(job.model, 7), random_batch(job, 3), {});
  }
  return steps.at(key);
}

void check_against_reference(const Job& job, const Plan& plan) {
  INFO(job.model.name << (job.model.tied_embeddings ? " tied" : "") << text_of(plan));
  const std::vector<Program> programs = lower_all(job, plan);
  const Problems problems = problems_of(programs);
  CHECK_MESSAGE(problems.empty(), problems.size(),
                " problems, the first: ", problems.empty() ? std::string() : problems.front());
  const ReferenceStep& expected = reference_of(job);
  const StepResult result = run_step(job, plan, random_batch(job, 3));
  CHECK(std::abs(result.loss - expected.loss) < kTolerance * expected.loss);
  CHECK(worst_relative_difference(result.gradients, expected.gradients) < kTolerance);
}

void check_bitwise(const Job& job, const Plan& a, const Plan& b) {
  INFO(text_of(a) << " and" << text_of(b));
  const Batch batch = random_batch(job, 3);
  const StepResult first = run_step(job, a, batch);
  const StepResult second = run_step(job, b, batch);
  CHECK(first.loss == second.loss);
  CHECK(bitwise_equal(first.gradients, second.gradients));
}

std::vector<double> loss_curve(const Job& job, const Plan& plan, std::int64_t steps) {
  HostBackend<double> backend(lower_all(job, plan), DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  const Batch batch = random_batch(job, 3);
  std::vector<double> losses;
  for (std::int64_t i = 0; i < steps; ++i) { losses.push_back(backend.step(batch, 1e-2)); }
  return losses;
}

}  // namespace

TEST_CASE("one rank computes the loss and every gradient of the reference model") {
  check_against_reference(tiny_job(tiny_model(), 1), {});
  check_against_reference(tiny_job(wide_model(), 1), {});
}

TEST_CASE("random layouts of up to 16 ranks compute the reference's loss and gradients") {
  Chooser choose;
  std::set<std::string> seen;
  std::map<std::string, std::int64_t> mixed;  // how often each dimension is larger than 1
  while (seen.size() < 160) {
    const Layout layout = random_layout(choose);
    const Plan& plan = layout.plan;
    if (layout.job.cluster.world_size() > 16 || why_invalid(layout.job, plan) ||
        why_not_lowered(layout.job, plan) ||
        !seen.insert(layout.job.model.name + text_of(plan)).second) {
      continue;
    }
    mixed["tp"] += plan.tp > 1 ? 1 : 0;
    mixed["sp"] += plan.sequence_parallel ? 1 : 0;
    mixed["cp"] += plan.cp > 1 ? 1 : 0;
    mixed["ring"] += plan.cp > 1 && plan.cp_method == CpMethod::kRing ? 1 : 0;
    mixed["zero bubble"] += plan.schedule == Schedule::kZbH1 ? 1 : 0;
    mixed["pp"] += plan.pp > 1 ? 1 : 0;
    mixed["vpp"] += plan.vpp > 1 ? 1 : 0;
    const bool is_divided = dense_shard_size(layout.job, plan) > 1;
    mixed["zero 1"] += is_divided && plan.zero == 1 ? 1 : 0;
    mixed["zero 2"] += is_divided && plan.zero == 2 ? 1 : 0;
    mixed["zero 3"] += is_divided && plan.zero == 3 ? 1 : 0;
    mixed["zero 3, pp"] += is_divided && plan.zero == 3 && plan.pp > 1 ? 1 : 0;
    mixed["bf16 gradients"] += plan.grad_dtype == DType::kBf16 ? 1 : 0;
    mixed["replicate"] += plan.dp_replicate > 1 ? 1 : 0;
    mixed["recompute"] += plan.recompute == Recompute{} ? 0 : 1;
    mixed["tied"] += layout.job.model.tied_embeddings && plan.pp > 1 ? 1 : 0;
    check_against_reference(layout.job, plan);
  }
  for (const auto& feature : mixed) {
    INFO(feature.first);
    CHECK(feature.second >= 5);
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
  for (const Recompute& recompute : recomputes()) {
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

TEST_CASE("twenty steps: the loss falls and all layouts follow one curve") {
  const std::vector<double> expected = loss_curve(tiny_job(tiny_model(), 1), {}, 20);
  CHECK(expected.front() > 3.2);
  CHECK(expected.back() < 0.7 * expected.front());
  const std::vector<std::pair<std::int64_t, Plan>> layouts = {
      {2, {.tp = 2, .sequence_parallel = true}},
      {4, {.zero = 1, .micro_batch = 2}},
      {4, {.cp = 2, .zero = 1, .cp_method = CpMethod::kAllGather}},
      {4, {.pp = 2, .dp_replicate = 2, .zero = 1, .schedule = Schedule::k1F1B}},
      {8, {.pp = 2, .dp_replicate = 2, .zero = 2, .schedule = Schedule::k1F1B}},
      {4, {.tp = 2, .zero = 3, .sequence_parallel = true}},
      {8,
       {.tp = 2,
        .cp = 2,
        .pp = 2,
        .zero = 1,
        .sequence_parallel = true,
        .recompute = {.granularity = RecomputeGranularity::kFull},
        .schedule = Schedule::k1F1B,
        .cp_method = CpMethod::kAllGather}},
  };
  for (const std::pair<std::int64_t, Plan>& layout : layouts) {
    INFO(text_of(layout.second));
    const std::vector<double> losses =
        loss_curve(tiny_job(tiny_model(), layout.first), layout.second, 20);
    double worst = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      worst = std::max(worst, std::abs(losses[i] / expected[i] - 1));
    }
    CHECK(worst < 1e-8);
  }
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
