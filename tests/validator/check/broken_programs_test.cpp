// Programs of a ring and of zero bubble H1, broken on purpose: the checks name rank, operation and
// tensor. Those of other plans stand in checks_test.cpp, moe_test.cpp and sharding_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "tests/validator/layouts.h"
#include "tests/validator/refused.h"
#include "validator/check/checks.h"
#include "validator/check/communication.h"

namespace shardplan {
namespace {

using Programs = std::vector<Program>;
using Check = Problems (*)(const Programs&);

const Programs& ring_programs() {
  static const Programs programs =
      lower_all(tiny_job(tiny_model(), 4), {.cp = 4, .cp_method = CpMethod::kRing});
  return programs;
}

const Programs& zero_bubble_programs() {
  static const Programs programs =
      lower_all(tiny_job(tiny_model(), 4),
                {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = Schedule::kZbH1});
  return programs;
}

// The first operation of the label; behind `after`.
std::int64_t find(const Program& program, const std::string& label, std::int64_t after = -1) {
  for (std::int64_t i = after + 1; i < std::ssize(program.operations); ++i) {
    if (program.operations[static_cast<std::size_t>(i)].label == label) {
      return i;
    }
  }
  FAIL("no operation " << label);
  return -1;
}

Operation& at(Program& program, std::int64_t operation) {
  return program.operations[static_cast<std::size_t>(operation)];
}

Operation& first(Program& program, const std::string& label) {
  return at(program, find(program, label));
}

Tensor& tensor_of(Program& program, const View& view) {
  return program.tensors[static_cast<std::size_t>(view.tensor)];
}

// Something harmless in its place that leaves events and writes as they are.
void leave_out(Operation& op) {
  op = {.kind = OpKind::kFill,
        .out = op.out,
        .stream = op.stream,
        .waits = op.waits,
        .records = op.records,
        .label = "left_out"};
}

// Every text must stand in one message of the check about the broken programs.
void check_refused(Programs programs, const std::function<void(Programs&)>& breaks,
                   const std::vector<std::string>& texts, Check check = problems_of) {
  breaks(programs);
  check_problem(check(programs), texts);
}

const std::string kShift = "forward.attention.ring_key_values.shift";

}  // namespace

TEST_CASE("the programs that are to be broken have no problems") {
  CHECK(problems_of(ring_programs()).empty());
  CHECK(problems_of(zero_bubble_programs()).empty());
}

TEST_CASE("what is about to run is refused with its first problem, and runs where it has none") {
  Programs programs = ring_programs();
  CHECK_NOTHROW(require_sound(programs));
  leave_out(first(programs[2], kShift));
  const std::string first_problem = problems_of(programs).at(0);
  try {
    require_sound(programs);
    FAIL("nothing was thrown");
  } catch (const std::logic_error& error) {
    CHECK(std::string(error.what()).starts_with("unsound program, "));
    CHECK(std::string(error.what()).ends_with(first_problem));
  }
}

TEST_CASE(
    "ring: a shift that one rank leaves out puts keys of backward where those of forward are "
    "expected") {
  check_refused(
      ring_programs(), [](Programs& p) { leave_out(first(p[2], kShift)); },
      {"rank 2", "ring_shift backward.attention.ring_key_values.shift", "meets", "rank 0",
       "ring_shift forward.attention.ring_key_values.shift"},
      communication_problems);
}

TEST_CASE("ring: keys and gradients that one rank shifts in another order are refused") {
  check_refused(
      ring_programs(),
      [](Programs& p) {
        const std::int64_t keys = find(p[1], "backward.attention.ring_key_values.shift",
                                       find(p[1], "backward.attention.ring_key_values.shift"));
        const std::int64_t gradients =
            find(p[1], "backward.attention.ring_key_value_gradients.shift");
        std::swap(at(p[1], keys), at(p[1], gradients));
      },
      {"rank 1", "ring_shift backward.attention.ring_key_values.shift", "meets", "rank 0",
       "'attention.ring_key_value_gradients'"},
      communication_problems);
}

TEST_CASE("ring: a rank that stops one hop early leaves the others waiting") {
  check_refused(
      ring_programs(),
      [](Programs& p) {
        std::int64_t last = -1;
        for (std::int64_t i = 0; i < std::ssize(p[3].operations); ++i) {
          last = at(p[3], i).kind == OpKind::kRingShift ? i : last;
        }
        leave_out(at(p[3], last));
      },
      {"ring_shift backward.attention.ring_key_value_gradients.shift",
       "'attention.ring_key_value_gradients'", "no counterpart on rank 3"},
      communication_problems);
}

TEST_CASE("ring: attention that does not wait for the keys that arrive is a hazard") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  // The block behind the diagonal reads what the first shift brought.
                  first(p[0], "forward.attention.block").waits.clear();
                },
                {"rank 0", "attention_forward forward.attention.block", "reads",
                 "'attention.ring_key_values'", "ring_shift", "stream context"});
}

TEST_CASE("ring: keys that arrive over keys that attention still reads are a hazard") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  const std::int64_t third =
                      find(p[1], kShift, find(p[1], kShift, find(p[1], kShift)));
                  at(p[1], third).waits.clear();
                },
                {"rank 1", "ring_shift " + kShift, "writes", "'attention.ring_key_values'",
                 "stream compute"});
}

TEST_CASE("ring: one buffer instead of two is refused") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  Operation& shift = first(p[0], kShift);
                  shift.out[0] = shift.in[0];
                },
                {"rank 0", "ring_shift", "'attention.ring_key_values'", "a buffer of its own"});
}

TEST_CASE("ring: a merge of statistics of other rows than the output's is refused") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  View& statistics = first(p[2], "forward.attention.merge").in[1];
                  statistics = rows_of(statistics, 0, statistics.rows - 1);
                },
                {"rank 2", "lse_merge forward.attention.merge", "'attention.log_sum_exp'",
                 "the shape of the part"});
}

TEST_CASE("ring: keys that reach beyond the first query of a block are refused") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  Operation& block = first(p[0], "forward.attention.block");
                  block.attributes.key_position =
                      block.attributes.query_position + 1 - block.in[1].rows;
                },
                {"rank 0", "attention_forward", "'attention.ring_key_values'",
                 "none beyond the first query"});
}

TEST_CASE("ring: gradients of the first hop that are never started are read without a write") {
  check_refused(ring_programs(),
                [](Programs& p) {
                  Operation& op = first(p[1], "backward.attention.ring_query_gradient");
                  REQUIRE(op.kind == OpKind::kCopy);
                  op.out[0] = rows_of(op.out[0], 0, op.out[0].rows - 1);
                  op.in[0] = rows_of(op.in[0], 0, op.in[0].rows - 1);
                },
                {"rank 1", "add backward.attention.ring_query_gradient.add",
                 "'attention.ring_query_gradient'", "nothing has written"});
}

TEST_CASE("zero bubble: two microbatches that wait in one slot are refused") {
  check_refused(zero_bubble_programs(),
                [](Programs& p) {
                  // Rank 2 is of the second stage: two microbatches wait for their weight
                  // gradients.
                  std::int64_t lowest = -1;
                  for (Tensor& tensor : p[2].tensors) {
                    if (tensor.name == "ffn.gate_up_gradient") {
                      lowest = lowest < 0 ? tensor.offset : std::min(lowest, tensor.offset);
                    }
                  }
                  for (Tensor& tensor : p[2].tensors) {
                    tensor.offset = tensor.name == "ffn.gate_up_gradient" ? lowest : tensor.offset;
                  }
                },
                {"rank 2", "'ffn.gate_up_gradient'", "overlaps"});
}

TEST_CASE("zero bubble: an input that leaves with its backward is used outside its lifetime") {
  check_refused(
      zero_bubble_programs(),
      [](Programs& p) {
        tensor_of(p[0], first(p[0], "forward.ffn.swiglu").out[0]).dies =
            find(p[0], "backward.ffn.swiglu");
      },
      {"rank 0", "gemm weight.ffn.down.weight_gradient", "'ffn.activation'", "alive from"});
}

TEST_CASE("zero bubble: a weight gradient before the backward that it belongs to is refused") {
  check_refused(zero_bubble_programs(),
                [](Programs& p) {
                  const std::int64_t gradient = find(p[2], "weight.ffn.gate_up.weight_gradient");
                  const std::int64_t backward = find(p[2], "backward.ffn.down.input_gradient");
                  std::swap(at(p[2], gradient), at(p[2], backward));
                },
                {"rank 2", "gemm weight.ffn.gate_up.weight_gradient", "'ffn.gate_up_gradient'",
                 "alive from"});
}

TEST_CASE("zero bubble: a weight gradient that does not wait for gathered rows is a hazard") {
  check_refused(
      zero_bubble_programs(),
      [](Programs& p) { first(p[1], "weight.ffn.gate_up.weight_gradient").waits.clear(); },
      {"rank 1", "gemm weight.ffn.gate_up.weight_gradient", "'gathered_inputs'", "all_gather",
       "stream tensor"});
}

TEST_CASE("zero bubble: a gather that one tp rank leaves out of its weight actions is missed") {
  check_refused(
      zero_bubble_programs(),
      [](Programs& p) {
        std::int64_t last = -1;
        for (std::int64_t i = 0; i < std::ssize(p[3].operations); ++i) {
          last = at(p[3], i).label == "weight.attention.gathered_input" ? i : last;
        }
        leave_out(at(p[3], last));
      },
      {"rank 2", "all_gather weight.attention.gathered_input", "'gathered_inputs'",
       "no counterpart on rank 3"},
      communication_problems);
}

TEST_CASE("zero bubble: an input gradient that is never sent leaves its stage waiting") {
  check_refused(
      zero_bubble_programs(), [](Programs& p) { leave_out(first(p[2], "backward.send")); },
      {"rank 0", "receive backward.receive", "'output_gradient'"}, communication_problems);
}

TEST_CASE("zero bubble: a stage that sends its gradients after its weight gradients deadlocks") {
  Programs programs = zero_bubble_programs();
  // The second stage's first gradient waits for a forward that needs it.
  Operation& send = first(programs[2], "backward.send");
  const std::int64_t forward =
      find(programs[2], "forward.receive",
           find(programs[2], "forward.receive", find(programs[2], "forward.receive")));
  REQUIRE(at(programs[2], forward).records >= 0);
  send.waits.push_back(at(programs[2], forward).records);
  const Problems problems = deadlock_problems(programs);
  CHECK(std::ranges::any_of(problems, [](const std::string& problem) {
    return problem.starts_with("deadlock: rank 2") &&
           problem.find("send backward.send") != std::string::npos &&
           problem.find("'output_gradient'") != std::string::npos;
  }));
}

}  // namespace shardplan
