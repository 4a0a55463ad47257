#include "validator/check/checks.h"
#include "tests/validator/layouts.h"
#include "tests/validator/refused.h"
#include "validator/check/communication.h"
#include "validator/check/streams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string_view>

namespace shardplan {
namespace {

using Break = std::function<void(std::vector<Program>&)>;

Plan pipeline_plan() {
  return {.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .schedule = Schedule::k1F1B};
}

std::vector<Program> sound_programs() {
  return lower_all(tiny_job(tiny_model(), 8), pipeline_plan());
}

// The first operation of the kind whose label contains the text.
std::int64_t find(const Program& program, OpKind kind, std::string_view label = "") {
  const auto found = std::ranges::find_if(program.operations, [&](const Operation& op) {
    return op.kind == kind && op.label.find(label) != std::string::npos;
  });
  REQUIRE(found != program.operations.end());
  return found - program.operations.begin();
}

Operation& first(Program& program, OpKind kind, std::string_view label = "") {
  return program.operations[static_cast<std::size_t>(find(program, kind, label))];
}

// Something harmless in its place that leaves events and writes as they are.
void leave_out(Operation& op) {
  op = {.kind = OpKind::kFill,
        .out = op.out,
        .stream = op.stream,
        .waits = op.waits,
        .records = op.records};
}

Tensor& tensor_of(Program& program, const View& view) {
  return program.tensors[static_cast<std::size_t>(view.tensor)];
}

// Every text must stand in one message of the check about the broken programs.
void check_refused(const Break& breaks, const std::vector<std::string>& texts,
                   Problems (*check)(const std::vector<Program>&) = problems_of) {
  std::vector<Program> programs = sound_programs();
  breaks(programs);
  check_problem(check(programs), texts);
}

}  // namespace

TEST_CASE("sound programs have no problems") {
  CHECK(problems_of(sound_programs()).empty());
}

TEST_CASE("every event is needed: without any one wait there is a hazard") {
  Program program = sound_programs()[0];
  std::int64_t waits = 0;
  std::int64_t not_missed = 0;
  for (Operation& op : program.operations) {
    const std::vector<std::int64_t> all = op.waits;
    for (const std::int64_t event : all) {
      op.waits = all;
      std::erase(op.waits, event);
      ++waits;
      not_missed += stream_problems(program).empty() ? 1 : 0;
    }
    op.waits = all;
  }
  CHECK(waits > 100);
  CHECK(not_missed == 0);
}

TEST_CASE("every lifetime is needed: one that is an operation shorter on either side is refused") {
  CHECK(num_needless_lifetimes(sound_programs()[0]) == 0);
}

TEST_CASE("cells of tokens of all tp ranks hold the same memory during every operation") {
  // 16 tokens and a piece of 4; 16 tokens. Of hidden size 16, two bytes each.
  const Program program = sound_programs()[0];
  for (const auto& row :
       {std::pair{"exchanged_tokens", 20 * 16 * 2}, std::pair{"gathered_inputs", 16 * 16 * 2}}) {
    const auto& name = row.first;
    const auto& bytes = row.second;
    CAPTURE(name);
    std::vector<std::int64_t> alive(program.operations.size(), 0);
    for (const Tensor& tensor : program.tensors) {
      for (std::int64_t i = tensor.born; tensor.name == name && i <= tensor.dies; ++i) {
        alive[static_cast<std::size_t>(i)] += tensor.bytes;
      }
    }
    CHECK(std::ranges::count(alive, round_up(bytes, kTensorAlignment)) == std::ssize(alive));
  }
}

TEST_CASE("a tensor that is too small for its elements is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        tensor_of(p[1], first(p[1], OpKind::kSwigluForward).out[0]).bytes -= kTensorAlignment;
      },
      {"rank 1", "'ffn.activation'", "bytes for"});
}

TEST_CASE("a tensor at an unaligned address is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        tensor_of(p[0], first(p[0], OpKind::kGemm).out[0]).offset += 2;
      },
      {"rank 0", "'attention.packed_qkv'", "not aligned to 256"});
}

TEST_CASE("a tensor that ends behind its arena is refused") {
  check_refused([](std::vector<Program>& p) { p[2].dynamic_bytes -= kArenaMultiple; },
                {"rank 2", "ends behind its arena"});
}

TEST_CASE("an arena that is not a multiple of the allocation granularity is refused") {
  check_refused([](std::vector<Program>& p) { p[3].persistent_bytes += 256; },
                {"rank 3", "expected a multiple of 2097152"});
}

TEST_CASE("one slot too few: two microbatches in flight share memory") {
  // The second microbatch of rank 0 goes into the first one's slot.
  check_refused(
      [](std::vector<Program>& p) {
        // By slot: the first tensor that an action keeps is its chunk's input.
        const std::int64_t first_slot =
            tensor_of(p[0], first(p[0], OpKind::kSumParts, "forward.embedding").out[0]).offset;
        std::int64_t second_slot = first_slot;
        for (const Operation& op : p[0].operations) {
          if (op.label == "forward.embedding.sum" && op.microbatch == 1) {
            second_slot = tensor_of(p[0], op.out[0]).offset;
          }
        }
        for (Tensor& tensor : p[0].tensors) {
          if (tensor.placement == Placement::kSlot && tensor.offset >= second_slot) {
            tensor.offset -= second_slot - first_slot;
          }
        }
      },
      {"rank 0", "'attention.packed_qkv'", "overlaps"});
}

TEST_CASE("a temporary over one that is still alive is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        const Operation& op = first(p[0], OpKind::kSwigluBackward);
        tensor_of(p[0], op.out[0]).offset = tensor_of(p[0], op.in[0]).offset;
      },
      {"rank 0", "'ffn.gate_up_gradient'", "overlaps", "'ffn.activation_gradient'"});
}

TEST_CASE("a use outside a tensor's lifetime is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        tensor_of(p[0], first(p[0], OpKind::kAttentionForward).out[1]).dies -= 1;
      },
      {"rank 0", "attention_backward", "'attention.log_sum_exp'", "alive from operation"});
}

TEST_CASE("a view that reaches beyond its tensor is refused") {
  check_refused([](std::vector<Program>& p) { first(p[0], OpKind::kRope).in[0].offset += 999; },
                {"rank 0", "rope", "reaches beyond", "'attention.packed_qkv'"});
}

TEST_CASE("a view that is no rectangle of its tensor is refused") {
  check_refused([](std::vector<Program>& p) { first(p[0], OpKind::kRope).in[0].stride -= 1; },
                {"rank 0", "rope", "'attention.packed_qkv'", "no rectangle"});
}

TEST_CASE("a product of sizes that do not fit is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        Operation& op = first(p[0], OpKind::kGemm, "ffn.gate_up");
        op.attributes.transpose_b = false;
      },
      {"rank 0", "gemm forward.ffn.gate_up", "'weights'", "inner size of the product"});
}

TEST_CASE("a missing argument is refused") {
  check_refused([](std::vector<Program>& p) { first(p[0], OpKind::kAdamW).in[1] = {}; },
                {"rank 0", "adamw", "lacks number 1 of its inputs"});
}

TEST_CASE("a collective on a strided view is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        View& view = first(p[0], OpKind::kAllGather, "gathered_input").in[0];
        view = columns_of(view, 0, view.cols - 1);
      },
      {"rank 0", "all_gather", "contiguous"});
}

TEST_CASE("a collective with too large a part is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        View& view = first(p[0], OpKind::kReduceScatter).out[0];
        REQUIRE(view.rows == 1);
        view = columns_of(view, 0, view.cols - 1);
      },
      {"rank 0", "reduce_scatter", "one member's part"});
}

TEST_CASE("a receiver that is its own peer is refused") {
  check_refused([](std::vector<Program>& p) { first(p[0], OpKind::kSend).attributes.peer = 0; },
                {"rank 0", "send forward.send", "peer 0"});
}

TEST_CASE("an event that nothing records is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        const std::int64_t event = first(p[0], OpKind::kAllGather, "gathered_input").records;
        for (Operation& op : p[0].operations) {
          op.records = op.records == event ? -1 : op.records;
        }
      },
      {"rank 0", "gemm forward.attention.qkv", "waits for event", "nothing has recorded"});
}

TEST_CASE("an event that is recorded twice is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        first(p[0], OpKind::kRope).records =
            first(p[0], OpKind::kAllGather, "gathered_input").records;
      },
      {"rank 0", "rope", "again"});
}

TEST_CASE("a missing wait is a hazard between streams") {
  check_refused(
      [](std::vector<Program>& p) { first(p[0], OpKind::kGemm, "attention.qkv").waits.clear(); },
      {"rank 0", "gemm forward.attention.qkv", "'exchanged_tokens'", "all_gather",
       "stream tensor"});
}

TEST_CASE("a collective on another stream without events is a hazard") {
  check_refused(
      [](std::vector<Program>& p) {
        first(p[0], OpKind::kReduceScatter, "backward.gradients").waits.clear();
      },
      {"rank 0", "reduce_scatter backward.gradients", "'main_gradients'"});
}

TEST_CASE("memory that a send still reads must not be written: a missing wait is found") {
  check_refused(
      [](std::vector<Program>& p) {
        for (const Operation& send : p[0].operations) {
          if (send.kind == OpKind::kSend) {
            for (Operation& op : p[0].operations) { std::erase(op.waits, send.records); }
          }
        }
      },
      {"rank 0", "'output'", "stream send"});
}

TEST_CASE("an operation that is left out leaves a read without a write") {
  check_refused(
      [](std::vector<Program>& p) {
        Operation& op = first(p[0], OpKind::kSwigluForward);
        op.kind = OpKind::kFill;
        op.in.clear();
        op.out = {first(p[0], OpKind::kEmbeddingForward).out[0]};
        tensor_of(p[0], op.out[0]).dies = static_cast<std::int64_t>(p[0].operations.size()) - 1;
        tensor_of(p[0], op.out[0]).offset = p[0].dynamic_bytes - 4096;
      },
      {"rank 0", "gemm forward.ffn.down", "'ffn.activation'", "nothing has written"});
}

TEST_CASE("a gradient of which only a part was written is a read without a write") {
  check_refused(
      [](std::vector<Program>& p) {
        Operation& op = first(p[1], OpKind::kAttentionBackward);
        op.out[2] = op.out[1];  // dv is never written
      },
      {"rank 1", "gemm backward.attention.qkv", "'attention.qkv_gradient'", "nothing has written"});
}

TEST_CASE("swapped collectives are refused on both operations' names") {
  check_refused(
      [](std::vector<Program>& p) {
        const auto all_reduce =
            static_cast<std::size_t>(find(p[1], OpKind::kAllReduce, "gradient_norm"));
        const auto all_gather =
            static_cast<std::size_t>(find(p[1], OpKind::kAllGather, "update.gather_weights"));
        std::swap(p[1].operations[all_reduce], p[1].operations[all_gather]);
      },
      {"rank 1", "meets", "rank 3", "all_reduce update.gradient_norm", "'gradient_norm'",
       "all_gather update.gather_weights", "'weights'"},
      communication_problems);
}

TEST_CASE("a collective that one member leaves out meets the member's next one") {
  check_refused(
      [](std::vector<Program>& p) { leave_out(first(p[0], OpKind::kAllGather, "gathered_input")); },
      {"rank 1", "all_gather forward.attention.gathered_input", "meets", "rank 0",
       "exchange forward.attention.projection.exchange"});
}

TEST_CASE("a last collective that one member leaves out has no counterpart") {
  check_refused(
      [](std::vector<Program>& p) {
        leave_out(*std::ranges::find(p[0].operations.rbegin(), p[0].operations.rend(),
                                     "update.gather_weights", &Operation::label));
      },
      {"rank 2", "all_gather update.gather_weights", "'weights'", "no counterpart on rank 0"});
}

TEST_CASE("a send that nobody receives is refused") {
  check_refused(
      [](std::vector<Program>& p) {
        for (Operation& op : p[4].operations) {
          if (op.label == "forward.receive" && op.microbatch == 3) {
            leave_out(op);
          }
        }
      },
      {"rank 0", "send forward.send", "'output'", "nobody receives it"});
}

TEST_CASE("messages that cross are refused") {
  check_refused(
      [](std::vector<Program>& p) {
        first(p[4], OpKind::kReceive, "forward.receive").attributes.tag += 1;
      },
      {"rank 4", "receive forward.receive", "'input'", "rank 0", "'output'"});
}

TEST_CASE("a group that only one of its members knows is refused") {
  check_refused([](std::vector<Program>& p) { p[5].groups[0].ranks.pop_back(); },
                {"rank 5", "a group whose members do not all know it"}, communication_problems);
}

TEST_CASE("ranks that wait for one another are found") {
  std::vector<Program> programs = sound_programs();
  // Rank 0 sends its first output only when it has the gradient of it.
  const std::int64_t event = first(programs[0], OpKind::kReceive, "backward").records;
  REQUIRE(event >= 0);
  first(programs[0], OpKind::kSend).waits.push_back(event);
  const Problems problems = deadlock_problems(programs);
  CHECK(std::ranges::any_of(problems, [](const std::string& problem) {
    return problem.starts_with("deadlock: rank 0") &&
           problem.find("send forward.send") != std::string::npos &&
           problem.find("tensor 'output'") != std::string::npos;
  }));
}

}  // namespace shardplan
