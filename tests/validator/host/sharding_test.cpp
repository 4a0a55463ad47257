// ZeRO 0 to 3 and hybrid sharding: the policy at the head of validator/lower/sharding.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/validator/layouts.h"
#include "validator/check/checks.h"

namespace shardplan {
namespace {

constexpr double kReordered = 1e-12;  // float64 sums of a few terms in another order

Plan with_zero(Plan plan, std::int64_t zero) {
  plan.zero = zero;
  return plan;
}

std::vector<Program> lowered(const Job& job, const Plan& plan, const Hyperparameters& h) {
  std::vector<Program> programs;
  for (std::int64_t rank = 0; rank < job.cluster.world_size(); ++rank) {
    programs.push_back(lower(job, plan, rank, h));
  }
  return programs;
}

struct Trained {
  Tensors gradients;  // of the last step
  Tensors weights;
  Tensors master_weights;
};

Trained trained(const Job& job, const Plan& plan, const Hyperparameters& h, std::int64_t steps) {
  HostBackend<double> backend(lowered(job, plan, h), DeadMemory::kPoisoned);
  backend.load(initial_tensors(job.model, 7));
  for (std::int64_t i = 0; i < steps; ++i) { backend.step(random_batch(job, 3), 1e-2); }
  return {.gradients = backend.gradients(),
          .weights = backend.weights(),
          .master_weights = backend.master_weights()};
}

// Ranks and plans whose ZeRO stage is still open.
struct Case {
  std::string name;
  Job job;
  Plan plan;
};

Job tied_job(std::int64_t world) {
  ModelSpec model = tiny_model();
  model.tied_embeddings = true;
  return tiny_job(model, world);
}

ModelSpec deep_model() {
  ModelSpec model = tiny_model();
  model.layers.resize(8);
  return model;
}

std::vector<Case> cases() {
  const Plan pipeline{.pp = 2, .schedule = Schedule::k1F1B};
  Plan hybrid{.dp_replicate = 2};
  hybrid.tp = 2;
  hybrid.sequence_parallel = true;
  Plan interleaved{.pp = 2, .vpp = 2, .schedule = Schedule::kInterleaved1F1B};
  interleaved.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 2};
  return {
      {"dp", tiny_job(tiny_model(), 4), {}},
      {"one microbatch", tiny_job(tiny_model(), 4), {.micro_batch = 2}},
      {"tp sp", tiny_job(tiny_model(), 4), {.tp = 2, .sequence_parallel = true}},
      {"cp", tiny_job(tiny_model(), 4), {.cp = 2, .cp_method = CpMethod::kAllGather}},
      {"tied, one stage", tied_job(4), {}},
      {"tied, two stages", tied_job(4), pipeline},
      {"hybrid", tiny_job(tiny_model(), 8), hybrid},
      {"interleaved", tiny_job(deep_model(), 4), interleaved},
      {"experts",
       tiny_job(tiny_moe(), 8),
       {.tp = 2, .ep = 2, .sequence_parallel = true, .moe_buffer_factor = 2}},
      {"whole experts", tiny_job(tiny_moe(), 4), {.ep = 4, .moe_buffer_factor = 4}},
      {"bf16 gradients and moments",
       tiny_job(tiny_model(), 4),
       {.grad_dtype = DType::kBf16,
        .exp_avg_dtype = DType::kBf16,
        .exp_avg_sq_dtype = DType::kBf16}},
  };
}

std::int64_t persistent_bytes(const Program& program, const std::string& name) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : program.tensors) {
    const bool counts = tensor.name == name && tensor.arena == Arena::kPersistent;
    bytes += counts ? tensor.bytes : 0;
  }
  return bytes;
}

// Bytes of the tensors of this name that are alive during every operation.
std::vector<std::int64_t> alive_bytes(const Program& program, const std::string& name) {
  std::vector<std::int64_t> bytes(program.operations.size(), 0);
  for (const Tensor& tensor : program.tensors) {
    for (std::int64_t i = tensor.born; tensor.name == name && i <= tensor.dies; ++i) {
      bytes[static_cast<std::size_t>(i)] += tensor.bytes;
    }
  }
  return bytes;
}

std::int64_t count_labels(const Program& program, const std::string& ending) {
  return std::ranges::count_if(program.operations,
                               [&](const Operation& op) { return op.label.ends_with(ending); });
}

// The gathers of weights, in the order of the list.
std::vector<std::int64_t> gathers(const Program& program) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (program.operations[i].label.ends_with(".gather_weights")) {
      found.push_back(static_cast<std::int64_t>(i));
    }
  }
  return found;
}

// A run of operations that read one gathered unit.
struct Use {
  std::int64_t tensor = 0;
  std::int64_t first = 0;  // operation
};

std::vector<Use> uses_of_gathered(const Program& program) {
  std::vector<Use> uses;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    for (const View& view : program.operations[i].in) {
      const bool is_gathered =
          view.present() &&
          program.tensors[static_cast<std::size_t>(view.tensor)].name == "gathered_weights";
      if (is_gathered && (uses.empty() || uses.back().tensor != view.tensor)) {
        uses.push_back({.tensor = view.tensor, .first = static_cast<std::int64_t>(i)});
      }
    }
  }
  return uses;
}

std::int64_t gather_of(const Program& program, std::int64_t tensor) {
  for (const std::int64_t i : gathers(program)) {
    if (program.operations[static_cast<std::size_t>(i)].out[0].tensor == tensor) {
      return i;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("ZeRO 2 and 3 give the same bits: gradients, and weights after clipped steps") {
  const Hyperparameters h{.max_gradient_norm = 0.05};
  for (const Case& c : cases()) {
    INFO(c.name);
    const Trained two = trained(c.job, with_zero(c.plan, 2), h, 2);
    const Trained three = trained(c.job, with_zero(c.plan, 3), h, 2);
    CHECK(bitwise_equal(two.gradients, three.gradients));
    CHECK(bitwise_equal(two.weights, three.weights));
    CHECK(bitwise_equal(three.weights, three.master_weights));
  }
}

TEST_CASE("with one microbatch all stages of ZeRO give the same bits, clipped or not") {
  const Hyperparameters h{.max_gradient_norm = 0.05};
  const std::vector<Case> same_calls = {
      {"dp", tiny_job(tiny_model(), 4), {.micro_batch = 2}},
      {"tp sp", tiny_job(tiny_model(), 4), {.tp = 2, .micro_batch = 4, .sequence_parallel = true}},
      {"cp",
       tiny_job(tiny_model(), 4),
       {.cp = 2, .micro_batch = 4, .cp_method = CpMethod::kAllGather}},
      {"pp", tiny_job(tiny_model(), 4), {.pp = 2, .micro_batch = 4, .schedule = Schedule::kGpipe}},
      {"experts", tiny_job(tiny_moe(), 4), {.ep = 2, .micro_batch = 2, .moe_buffer_factor = 2}},
  };
  for (const Case& c : same_calls) {
    INFO(c.name);
    const Trained zero = trained(c.job, with_zero(c.plan, 0), h, 2);
    for (const std::int64_t stage : {1, 2, 3}) {
      const Trained other = trained(c.job, with_zero(c.plan, stage), h, 2);
      CHECK(bitwise_equal(zero.gradients, other.gradients));
      CHECK(bitwise_equal(zero.weights, other.weights));
    }
  }
}

TEST_CASE("a whole gradient is reduced once in a step, behind its last pass and beside the next") {
  for (const std::int64_t zero : {0, 1}) {
    for (const Case& c : cases()) {
      INFO(c.name << " zero " << zero);
      if (zero == 0 && c.plan.dp_replicate > 1) {
        continue;
      }
      const Program program = lower(c.job, with_zero(c.plan, zero), 0, {});
      std::set<std::int64_t> reduced;  // tensors
      std::set<std::int64_t> events;   // of reductions
      for (const Operation& op : program.operations) {
        if (op.label.ends_with(".gradients")) {
          CHECK(reduced.insert(op.in[0].tensor).second);
          events.insert(op.records);
        }
        // No pass waits for a reduction, and nothing is added to a gradient that is reduced.
        if (op.stream == Stream::kCompute && !op.label.starts_with("update.")) {
          CHECK(std::ranges::none_of(op.waits, [&](std::int64_t e) { return events.contains(e); }));
        }
        if (op.label.ends_with("weight_gradient")) {
          CHECK_FALSE(reduced.contains(op.out[0].tensor));
        }
      }
      CHECK(reduced.size() > 1);
    }
  }
}

TEST_CASE("the gradient of a layer is reduced before the backward pass of the one before begins") {
  const Program program = lower(tiny_job(tiny_model(), 4), {.zero = 1}, 0, {});
  std::vector<std::int64_t> layers;
  for (const Operation& op : program.operations) {
    if (op.microbatch == 1 && op.label.starts_with("backward.")) {
      if (op.label == "backward.gradients") {
        layers.push_back(op.layer);
      } else {
        CHECK(std::ranges::find(layers, op.layer) == layers.end());
      }
    }
  }
  CHECK(layers == std::vector<std::int64_t>{3, 2, 1, 0, -1});  // the embedding belongs to no layer
}

TEST_CASE("updated weights come before the next forward pass, those that begin it beside AdamW") {
  // Units: embedding, four layers, head.
  const Job job = tiny_job(tiny_model(), 4);
  for (const std::int64_t zero : {1, 2}) {
    const Program program = lower(job, {.zero = zero}, 0, {});
    CHECK(gathers(program).size() == 6);
    for (std::size_t i = 0; i < 4; ++i) {  // of the other layers and the head, at the start
      CHECK(program.operations[i].label == "forward.gather_weights");
      CHECK(program.operations[i].waits.empty());
    }
    CHECK(count_labels(program, "update.gather_weights") == 2);
    CHECK(program.operations.back().label == "update.adamw");
  }
  CHECK(gathers(lower(job, {.zero = 0}, 0, {})).empty());
  // A stage without the embedding waits for its input anyway.
  const Program last = lower(job, {.pp = 2, .zero = 1, .schedule = Schedule::k1F1B}, 3, {});
  CHECK(count_labels(last, "update.gather_weights") == 0);
  CHECK(gathers(last).size() == 3);
}

TEST_CASE("a shard group of one rank divides nothing: the programs of ZeRO 1, 2 and 3 are equal") {
  const Job job = tiny_job(tiny_model(), 4);
  Plan plan{.dp_replicate = 2};
  plan.tp = 2;
  const auto labels = [&](std::int64_t zero) {
    std::vector<std::string> all;
    for (const Operation& op : lower(job, with_zero(plan, zero), 0, {}).operations) {
      all.push_back(op.label);
    }
    return all;
  };
  CHECK(labels(1) == labels(2));
  CHECK(labels(1) == labels(3));
}

TEST_CASE("accumulation in another order stays within float64's accuracy") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const Batch batch = random_batch(c.job, 3);
    const StepResult one = run_step(c.job, with_zero(c.plan, 1), batch);
    const StepResult three = run_step(c.job, with_zero(c.plan, 3), batch);
    CHECK(one.loss == three.loss);
    CHECK(worst_relative_difference(three.gradients, one.gradients) < kReordered);
  }
}

TEST_CASE("the global norm counts every element once: clipped weights equal those of one rank") {
  const Hyperparameters h{.max_gradient_norm = 0.05};
  for (const Case& c : cases()) {
    const Trained one = trained(tiny_job(c.job.model, 1), {}, h, 1);
    for (const std::int64_t zero : {1, 2, 3}) {
      INFO(c.name << " zero " << zero);
      const Trained many = trained(c.job, with_zero(c.plan, zero), h, 1);
      CHECK(worst_relative_difference(many.weights, one.weights) < 1e-9);
    }
  }
}

TEST_CASE("state of a rank under ZeRO 2 and 3, counted by hand") {
  // Units end at multiples of 4 * 128 elements. Embedding: 480, so 512. Layer: matrices 1920, then
  // norms of 16 at 1920 and 1984, so 2048; four of them 8192. Head: 480, norm at 512, so 1024. A
  // shard is a quarter of their sum 9728.
  const Job job = tiny_job(tiny_model(), 4);
  const Program two = lower(job, {.zero = 2}, 0, {});
  CHECK(persistent_bytes(two, "weights") == 2 * 9728);
  CHECK(persistent_bytes(two, "main_gradients") == 4 * 9728 / 4);
  CHECK(persistent_bytes(two, "exp_avg") == 4 * 9728 / 4);
  const Program three = lower(job, {.zero = 3, .grad_dtype = DType::kBf16}, 0, {});
  CHECK(persistent_bytes(three, "weights") == 2 * 9728 / 4);
  CHECK(persistent_bytes(three, "main_gradients") == 2 * 9728 / 4);
  CHECK(persistent_bytes(three, "master_weights") == 4 * 9728 / 4);
}

TEST_CASE("whole units lie in two cells that hold the same memory during every operation") {
  // Cells of the largest layer or end and of the largest layer: 2048 elements each.
  const Job job = tiny_job(tiny_model(), 4);
  const Program program = lower(job, {.zero = 3}, 0, {});
  const auto all_equal = [](const std::vector<std::int64_t>& bytes, std::int64_t expected) {
    return std::ranges::all_of(bytes, [&](std::int64_t value) { return value == expected; });
  };
  CHECK(all_equal(alive_bytes(program, "gathered_weights"), 2 * 2048 * 2));
  CHECK(all_equal(alive_bytes(program, "unreduced_gradients"), 2 * 2048 * 4));
  const Program two = lower(job, {.zero = 2}, 0, {});
  CHECK(all_equal(alive_bytes(two, "gathered_weights"), 0));
  CHECK(all_equal(alive_bytes(two, "unreduced_gradients"), 2 * 2048 * 4));
}

TEST_CASE("units are gathered for every action that uses them and does not find them") {
  // Two microbatches: embedding, four layers and head forward; backward finds the last layer. The
  // second microbatch finds the second layer, which the backward pass before it left in its cell.
  const Job job = tiny_job(tiny_model(), 4);
  const Program program = lower(job, {.zero = 3}, 0, {});
  CHECK(gathers(program).size() == 2 * (6 + 3) - 1);
  CHECK(count_labels(program, "update.gather_weights") == 0);
  CHECK(count_labels(program, ".gradients") == 2 * 6);
  CHECK(count_labels(program, ".add_gradients") == 6);
  // Replays of two layers: the first group finds its last layer, the second is gathered whole.
  const Recompute pairs{.granularity = RecomputeGranularity::kFull, .num_layers = 2};
  CHECK(gathers(lower(job, {.zero = 3, .recompute = pairs}, 0, {})).size() == 2 * (6 + 3) - 1);
  // Replays of four layers: two more are gathered again behind the replay.
  const Recompute all{.granularity = RecomputeGranularity::kFull, .num_layers = 4};
  CHECK(gathers(lower(job, {.zero = 3, .recompute = all}, 0, {})).size() == 2 * (6 + 4 + 2) - 1);
  // A middle stage of 1F1B with one layer gathers it once in the step: it stays in its cell.
  const Program middle =
      lower(tiny_job(tiny_model(), 8), {.pp = 4, .zero = 3, .schedule = Schedule::k1F1B}, 2, {});
  CHECK(gathers(middle).size() == 1);
}

TEST_CASE("a unit is gathered while the unit before it computes, unless both share a cell") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const Program program = lower(c.job, with_zero(c.plan, 3), 0, {});
    std::int64_t early = 0;
    const std::vector<Use> uses = uses_of_gathered(program);
    for (std::size_t i = 1; i < uses.size(); ++i) {
      const Use& before = uses[i - 1];
      const bool is_first = std::ranges::find(uses, uses[i].tensor, &Use::tensor) - uses.begin() ==
                            static_cast<std::ptrdiff_t>(i);
      const auto offset = [&](const Use& use) {
        return program.tensors[static_cast<std::size_t>(use.tensor)].offset;
      };
      if (is_first && offset(before) != offset(uses[i])) {
        CHECK(gather_of(program, uses[i].tensor) < before.first);
        ++early;
      }
    }
    CHECK(early > 0);
  }
}

TEST_CASE("gathers do not keep residual additions from being one operation with the norm behind") {
  const Job job = tiny_job(tiny_model(), 4);
  const auto fused = [&](std::int64_t zero) {
    return std::ranges::count(lower(job, {.zero = zero}, 0, {}).operations,
                              OpKind::kAddRmsNormForward, &Operation::kind);
  };
  CHECK(fused(3) == fused(0));
}

TEST_CASE("a gather of half a unit is refused, whichever unit it is") {
  const Job job = tiny_job(tiny_model(), 2);
  const std::vector<Program> programs = lower_all(job, {.zero = 3});
  REQUIRE(problems_of(programs).empty());
  for (std::size_t k = 0; k < gathers(programs[0]).size(); k += 3) {
    INFO("gather " << k);
    std::vector<Program> broken = programs;
    for (Program& program : broken) {
      Operation& op = program.operations[static_cast<std::size_t>(gathers(program)[k])];
      op.out[0].cols /= 2;
      op.in[0].cols /= 2;
    }
    const Problems problems = problems_of(broken);
    REQUIRE_FALSE(problems.empty());
    CHECK(problems.front().find("'gathered_weights'") != std::string::npos);
    CHECK(problems.front().find("rank 0") != std::string::npos);
  }
}

}  // namespace shardplan
