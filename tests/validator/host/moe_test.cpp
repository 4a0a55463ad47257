// Mixture of experts: every layout computes the reference's loss and gradients, and a bound that is
// too small is an outcome with the factor that would have been needed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/validator/host/reference_model.h"
#include "tests/validator/layouts.h"
#include "validator/check/checks.h"
#include "validator/check/streams.h"
#include "validator/host/backend.h"
#include "validator/host/ops.h"

namespace shardplan {
namespace {

constexpr double kTolerance = 1e-10;  // relative, of float64 sums in another order

const ReferenceStep& reference_of(const Job& job) {
  static std::map<std::pair<std::string, bool>, ReferenceStep> steps;
  const bool in_turn = job.profile.moe_router_force_load_balancing;
  const auto key = std::pair(job.model.name, in_turn);
  if (!steps.contains(key)) {
    steps[key] = reference_step(job.model, initial_tensors(job.model, 7), random_batch(job, 3),
                                {.chooses_in_turn = in_turn});
  }
  return steps.at(key);
}

void check_against_reference(const Job& job, const Plan& plan) {
  INFO(job.model.name << text_of(plan));
  const std::vector<Program> programs = lower_all(job, plan);
  const Problems problems = problems_of(programs);
  CHECK_MESSAGE(problems.empty(), problems.size(),
                " problems, the first: ", problems.empty() ? std::string() : problems.front());
  const ReferenceStep& expected = reference_of(job);
  const StepResult result = run_step(job, plan, random_batch(job, 3));
  CHECK(std::abs(result.loss - expected.loss) < kTolerance * expected.loss);
  CHECK(worst_relative_difference(result.gradients, expected.gradients) < kTolerance);
}

Recompute selective(const RecomputeModules& modules) {
  return {.granularity = RecomputeGranularity::kSelective, .modules = modules};
}

const std::vector<Recompute>& recomputes() {
  static const std::vector<Recompute> all = {
      {},
      {},
      selective({.moe_act = true}),
      selective({.moe = true}),
      selective({.shared_experts = true}),
      selective({.layernorm = true, .moe = true}),
      selective({.core_attn = true, .layernorm = true, .moe_act = true, .shared_experts = true}),
      {.granularity = RecomputeGranularity::kFull},
      {.granularity = RecomputeGranularity::kFull, .num_layers = 2},
      {.granularity = RecomputeGranularity::kFull,
       .method = RecomputeMethod::kBlock,
       .num_layers = 1},
  };
  return all;
}

}  // namespace

TEST_CASE("one rank computes the loss and every gradient of a mixture of experts") {
  check_against_reference(tiny_job(tiny_moe(), 1), {});
  check_against_reference(tiny_job(wide_moe(), 1), {});
}

TEST_CASE("recomputing experts and cutting the model into stages change no bit") {
  const Job job = tiny_job(tiny_moe(), 4);
  const Batch batch = random_batch(job, 3);
  const Plan plain{.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true, .moe_buffer_factor = 2};
  const StepResult expected = run_step(job, plain, batch);
  for (const Recompute& recompute : recomputes()) {
    Plan plan = plain;
    plan.recompute = recompute;
    INFO(text_of(plan));
    const StepResult result = run_step(job, plan, batch);
    CHECK(result.loss == expected.loss);
    CHECK(bitwise_equal(result.gradients, expected.gradients));
  }
  const StepResult one = run_step(tiny_job(tiny_moe(), 1), {}, batch);
  const StepResult stages = run_step(job, {.pp = 4, .schedule = Schedule::k1F1B}, batch);
  CHECK(stages.loss == doctest::Approx(one.loss).epsilon(1e-15));  // its parts are added per stage
  CHECK(bitwise_equal(stages.gradients, one.gradients));
}

TEST_CASE("clipped steps of experts follow one curve in all layouts") {
  const auto losses = [](std::int64_t world, const Plan& plan) {
    const Job job = tiny_job(tiny_moe(), world);
    HostBackend<double> backend(lower_all(job, plan), DeadMemory::kPoisoned);
    backend.load(initial_tensors(job.model, 7));
    std::vector<double> curve;
    for (int i = 0; i < 12; ++i) { curve.push_back(backend.step(random_batch(job, 3), 1e-2)); }
    CHECK_FALSE(backend.needed_buffer_factor());
    return curve;
  };
  const std::vector<double> expected = losses(1, {});
  CHECK(expected.back() < 0.9 * expected.front());
  const std::vector<std::pair<std::int64_t, Plan>> layouts = {
      {4, {.ep = 4, .zero = 1, .moe_buffer_factor = 4}},
      {4, {.ep = 2, .dp_replicate = 2, .zero = 1, .moe_buffer_factor = 2}},
      {8, {.ep = 2, .dp_replicate = 2, .zero = 2, .moe_buffer_factor = 2}},
      {8, {.tp = 2, .ep = 2, .zero = 3, .sequence_parallel = true, .moe_buffer_factor = 2}},
      {8, {.tp = 2, .ep = 2, .etp = 2, .zero = 1, .moe_buffer_factor = 2}},
      {8,
       {.tp = 2,
        .cp = 2,
        .ep = 4,
        .pp = 2,
        .sequence_parallel = true,
        .schedule = Schedule::k1F1B,
        .cp_method = CpMethod::kAllGather,
        .moe_buffer_factor = 4}},
  };
  for (const auto& row : layouts) {
    const auto& world = row.first;
    const auto& plan = row.second;
    INFO(text_of(plan));
    const std::vector<double> curve = losses(world, plan);
    for (std::size_t i = 0; i < curve.size(); ++i) {
      CHECK(curve[i] == doctest::Approx(expected[i]).epsilon(1e-9));
    }
  }
}

// Buffers without room to spare take them: what is moved and computed is what is estimated.
TEST_CASE("experts in turn have as many rows each, and every layout follows the reference") {
  const auto in_turn = [](const ModelSpec& model, std::int64_t world) {
    Job job = tiny_job(model, world);
    job.profile.moe_router_force_load_balancing = true;
    return job;
  };
  check_against_reference(in_turn(tiny_moe(), 1), {});
  check_against_reference(in_turn(wide_moe(), 1), {});
  const std::vector<Plan> plans = {
      {.ep = 4},
      {.tp = 2, .ep = 4, .sequence_parallel = true},
      {.tp = 2, .ep = 2, .etp = 2},
      {.cp = 2, .ep = 4, .cp_method = CpMethod::kRing},
      {.tp = 2, .cp = 2, .ep = 4, .sequence_parallel = true, .cp_method = CpMethod::kAllGather},
      {.ep = 2, .pp = 2, .schedule = Schedule::k1F1B},
  };
  for (const Plan& plan : plans) {
    const Job job = in_turn(tiny_moe(), 8);
    check_against_reference(job, plan);
    HostBackend<double> backend(lower_all(job, plan), DeadMemory::kPoisoned);
    backend.load(initial_tensors(job.model, 7));
    backend.step(random_batch(job, 3), 1e-3);
    CHECK_FALSE(backend.needed_buffer_factor());
  }
}

TEST_CASE("more rows than fit are an outcome with the factor that suffices, to the last row") {
  const Job job = tiny_job(tiny_moe(), 4);
  const Batch batch = random_batch(job, 3);
  const auto run = [&](double factor) {
    HostBackend<double> backend(
        lower_all(job, {.tp = 2, .ep = 2, .etp = 2, .moe_buffer_factor = factor}),
        DeadMemory::kPoisoned);
    backend.load(initial_tensors(job.model, 7));
    const double loss = backend.step(batch, 1e-3);
    return std::pair(loss, backend.needed_buffer_factor());
  };
  const std::optional<double> needed = run(1).second;
  REQUIRE(needed);
  CHECK(*needed > 1);
  CHECK(*needed <= 2);
  const auto [loss, more] = run(*needed);
  CHECK_FALSE(more);
  CHECK(loss == doctest::Approx(reference_of(job).loss).epsilon(kTolerance));
  // 8 tokens of each of 2 ranks, 2 choices, and 2 ranks that hold shares of one expert: 32 rows.
  const std::int64_t rows = std::llround(*needed * 32);
  const double one_row_less = static_cast<double>(rows - 1) / 32;
  CHECK(run(one_row_less).second == needed);
}

TEST_CASE("where rows go: by expert, then member, then token, alike on all members") {
  // 2 members with 1 expert each; tokens of member 0 choose 1, 0, 1, those of member 1 0, 0, 1.
  const std::vector<double> counts = {1, 2, 2, 1};
  const auto rows_of_member = [&](std::int64_t member, std::vector<double> choices) {
    std::vector<double> all = counts;
    std::vector<double> rows(3);
    std::vector<double> offsets(2);
    std::vector<double> required = {0};
    const auto view = [](std::vector<double>& values, std::int64_t n, std::int64_t m) {
      return HostView<double>{
          .data = values.data(), .rows = n, .cols = m, .row_step = m, .step = 1};
    };
    const OpAttributes attributes{.experts = 1, .member = member, .capacity = 2};
    run_on_host<double>(OpKind::kExpertRows,
                        {.attributes = attributes,
                         .in = {view(choices, 3, 1), view(all, 2, 2)},
                         .out = {view(rows, 3, 1), view(offsets, 1, 2), view(required, 1, 1)}});
    CHECK(offsets == std::vector<double>{0, 2});  // 3 rows, of which 2 fit
    CHECK(required == std::vector<double>{3});
    return rows;
  };
  CHECK(rows_of_member(0, {1, 0, 1}) == std::vector<double>{0, 0, 1});
  CHECK(rows_of_member(1, {0, 0, 1}) == std::vector<double>{1, 2, 2});
}

TEST_CASE("single precision follows double precision with experts, too") {
  const Job job = tiny_job(tiny_moe(), 4);
  HostBackend<float> backend(
      lower_all(job, {.tp = 2, .ep = 4, .sequence_parallel = true, .moe_buffer_factor = 4}),
      DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  CHECK(backend.step(random_batch(job, 3), 1e-3) ==
        doctest::Approx(reference_of(job).loss).epsilon(1e-6));
  CHECK(worst_relative_difference(backend.gradients(), reference_of(job).gradients) < 1e-4);
}

TEST_CASE(
    "a router that knows nothing sends all to the first experts: a bound of ep, and no less") {
  Job job = tiny_job(tiny_moe(), 4);
  Tensors tensors = initial_tensors(job.model, 7);
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("router")) {
      std::ranges::fill(tensor.values, 0.0);
    }
  }
  const Batch batch = random_batch(job, 3);
  const Hyperparameters hyperparameters{.aux_coefficient = 1};
  const auto run = [&](double factor) {
    std::vector<Program> programs;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      programs.push_back(lower(job, {.ep = 4, .moe_buffer_factor = factor}, rank, hyperparameters));
    }
    HostBackend<double> backend(programs, DeadMemory::kPoisoned);
    backend.load(tensors);
    const double loss = backend.step(batch, 1e-3);
    return std::tuple(loss, backend.needed_buffer_factor(), backend.gradients());
  };
  CHECK(std::get<1>(run(3.96)) == std::optional(4.0));
  const auto [loss, needed, gradients] = run(4);
  CHECK_FALSE(needed);
  const ReferenceStep expected = reference_step(job.model, tensors, batch, {.aux_coefficient = 1});
  CHECK(loss == doctest::Approx(expected.loss).epsilon(kTolerance));
  CHECK(worst_relative_difference(gradients, expected.gradients) < kTolerance);
  // E * sum_e f_e / E = 1 whatever was chosen, in the mean over layers and sequences.
  const double without = reference_loss(job.model, tensors, batch, {.aux_coefficient = 0});
  CHECK(expected.loss - without == doctest::Approx(1).epsilon(1e-12));
}

namespace {

std::vector<Program> sound_programs() {
  return lower_all(tiny_job(tiny_moe(), 4),
                   {.tp = 2, .ep = 2, .etp = 2, .zero = 1, .sequence_parallel = true});
}

Operation& first(Program& program, OpKind kind) {
  const auto found = std::ranges::find(program.operations, kind, &Operation::kind);
  REQUIRE(found != program.operations.end());
  return *found;
}

// Every text must stand in one message about the programs.
void check_refused(const std::vector<Program>& programs, const std::vector<std::string>& texts) {
  const Problems problems = problems_of(programs);
  INFO((problems.empty() ? "no problem" : problems.front()));
  CHECK(std::ranges::any_of(problems, [&](const std::string& problem) {
    return std::ranges::all_of(
        texts, [&](const std::string& text) { return problem.find(text) != std::string::npos; });
  }));
}

}  // namespace

TEST_CASE("programs with experts: every event and every lifetime is needed") {
  Program program = sound_programs()[1];
  std::int64_t not_missed = 0;
  for (Operation& op : program.operations) {
    // The second microbatch repeats the first, in memory that has been used.
    const std::vector<std::int64_t> all =
        op.microbatch > 1 ? std::vector<std::int64_t>{} : op.waits;
    for (const std::int64_t event : all) {
      std::erase(op.waits, event);
      not_missed += stream_problems(program).empty() ? 1 : 0;
      op.waits = all;
    }
  }
  CHECK(not_missed == 0);
  CHECK(num_needless_lifetimes(program) == 0);
}

TEST_CASE("broken exchanges of rows are refused by rank, operation and tensor") {
  std::vector<Program> p = sound_programs();
  View& choices = first(p[2], OpKind::kExpertDispatch).in[1];
  choices = rows_of(choices, 0, choices.rows - 1);
  check_refused(p, {"rank 2", "expert_dispatch forward.experts.dispatch", "'router.choices'"});

  p = sound_programs();
  View& received = first(p[1], OpKind::kExpertCombine).in[0];
  received = rows_of(received, 0, received.rows - 1);
  check_refused(p,
                {"rank 1", "expert_combine forward.experts.combine", "'experts.output'", "meets"});

  p = sound_programs();
  first(p[3], OpKind::kExpertDispatch).attributes.copies = 1;
  check_refused(p, {"rank 3", "expert_dispatch", "meets", "rank 0"});

  p = sound_programs();
  Operation& combine = first(p[0], OpKind::kExpertCombine);
  combine = {.kind = OpKind::kFill,
             .out = {combine.out[0]},
             .stream = combine.stream,
             .waits = combine.waits,
             .records = combine.records};
  check_refused(p, {"rank 0", "meets", "expert_combine", "'experts.output'"});

  p = sound_programs();
  first(p[0], OpKind::kGroupedGemm).waits.clear();
  check_refused(p, {"rank 0", "grouped_gemm forward.experts.gate_up", "'experts.received'",
                    "stream experts"});
}

TEST_CASE("broken operations of experts are refused by rank, operation and tensor") {
  std::vector<Program> p = sound_programs();
  View& offsets = first(p[0], OpKind::kGroupedGemm).in[2];
  offsets = columns_of(offsets, 0, offsets.cols - 1);
  check_refused(p, {"rank 0", "grouped_gemm", "'expert_weights'", "one matrix for every expert"});

  p = sound_programs();
  first(p[0], OpKind::kRouterForward).attributes.sequence_rows = 4;
  check_refused(p, {"rank 0", "router_forward", "'router.counts'", "one row for every sequence"});

  p = sound_programs();
  first(p[1], OpKind::kExpertRows).attributes.member = 4;
  check_refused(p, {"rank 1", "expert_rows", "'router.gathered_counts'", "this member"});

  p = sound_programs();
  View& gradient = first(p[1], OpKind::kGroupedWeightGradient).out[0];
  gradient = rows_of(gradient, 0, gradient.rows / 2);
  check_refused(p, {"rank 1", "grouped_weight_gradient", "'expert_main_gradients'"});

  p = sound_programs();
  View& weights = first(p[0], OpKind::kExpertSwigluBackward).in[2];
  weights = rows_of(weights, 0, weights.rows - 1);
  check_refused(p, {"rank 0", "expert_swiglu_backward", "'experts.weights'"});

  p = sound_programs();
  View& scores = first(p[0], OpKind::kRouterBackward).in[0];
  scores.offset += 1;
  check_refused(p, {"rank 0", "router_backward", "'router.probabilities'", "reaches beyond"});
}

}  // namespace shardplan
