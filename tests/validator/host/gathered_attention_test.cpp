// Attention on gathered keys: which of them a call gets.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/validator/layouts.h"
#include "tests/validator/lower/byte_equality.h"
#include "tests/validator/refused.h"
#include "validator/check/checks.h"
#include "validator/program/operation_work.h"

namespace shardplan {
namespace {

Plan gathered(std::int64_t cp) {
  return {.cp = cp, .micro_batch = 2, .cp_method = CpMethod::kAllGather};
}

// Layers with these windows, two sequences.
Job windowed_job(const std::vector<std::int64_t>& windows, std::int64_t cp, std::int64_t length) {
  Job job = tiny_job(tiny_model(), cp);
  job.model.layers.clear();
  for (const std::int64_t window : windows) {
    job.model.layers.push_back({.is_moe = false, .attention_window = window});
  }
  job.sequence_length = length;
  job.global_batch = 2;
  return job;
}

bool is_attention(const Operation& op) {
  return op.kind == OpKind::kAttentionForward || op.kind == OpKind::kAttentionBackward;
}

// Its keys as they lie in the sequence, and the queries on them.
struct Call {
  std::int64_t query = 0;
  std::int64_t queries = 0;
  std::int64_t key = 0;
  std::int64_t keys = 0;
  friend auto operator<=>(const Call&, const Call&) = default;
};

Call call_of(const Operation& op) {
  const std::size_t query = op.kind == OpKind::kAttentionForward ? 0 : 1;
  return {.query = op.attributes.query_position,
          .queries = op.in[query].rows,
          .key = op.attributes.key_position,
          .keys = op.in[query + 1].rows};
}

// Of all ranks, each once.
std::set<Call> calls(const Job& job, const Plan& plan, OpKind kind) {
  std::set<Call> found;
  for (const Program& program : lower_all(job, plan)) {
    for (const Operation& op : program.operations) {
      if (op.kind == kind) {
        found.insert(call_of(op));
      }
    }
  }
  return found;
}

std::vector<Operation> operations(const Program& program, OpKind kind, const std::string& label) {
  std::vector<Operation> found;
  for (const Operation& op : program.operations) {
    if (op.kind == kind && op.label == label) {
      found.push_back(op);
    }
  }
  return found;
}

using Programs = std::vector<Program>;

// Of one layer and one microbatch of two sequences: chunks of 128.
Programs one_layer() {
  return lower_all(windowed_job({0}, 2, 512), gathered(2));
}

Operation& own_copy(Program& program) {
  return *std::ranges::find(program.operations, "forward.attention.gathered_key_values.own",
                            &Operation::label);
}

Operation& rotation(Program& program) {
  return *std::ranges::find(program.operations, OpKind::kRope, &Operation::kind);
}

template <class Break>
void check_refused(const Break& breaks, const std::vector<std::string>& texts) {
  Programs programs = one_layer();
  breaks(programs[1]);
  check_problem(problems_of(programs), texts, "rank 1");
}

const std::vector<std::int64_t> kWindows = {1, 5, 64, 65, 66, 100, 129, 130, 300, 400, 5000};

}  // namespace

TEST_CASE("keys of a call begin as many tiles of 64 before its queries as the window reaches") {
  using Calls = std::set<Call>;
  const auto of_window = [](std::int64_t window) {
    const Job job = windowed_job({window}, 2, 512);  // chunks of 128
    const Calls forward = calls(job, gathered(2), OpKind::kAttentionForward);
    CHECK(calls(job, gathered(2), OpKind::kAttentionBackward) == forward);
    return forward;
  };
  CHECK(of_window(0) ==
        Calls{{0, 128, 0, 128}, {128, 128, 0, 256}, {256, 128, 0, 384}, {384, 128, 0, 512}});
  // Query 128 sees key 64 with a window of 65, and key 63 with one of 66.
  CHECK(of_window(65) ==
        Calls{{0, 128, 0, 128}, {128, 128, 64, 192}, {256, 128, 192, 192}, {384, 128, 320, 192}});
  CHECK(of_window(66) ==
        Calls{{0, 128, 0, 128}, {128, 128, 0, 256}, {256, 128, 128, 256}, {384, 128, 256, 256}});
  // Five tiles: cut off at the start of the sequence for all chunks but the last.
  CHECK(of_window(300) ==
        Calls{{0, 128, 0, 128}, {128, 128, 0, 256}, {256, 128, 0, 384}, {384, 128, 64, 448}});
  CHECK(of_window(1) ==
        Calls{{0, 128, 0, 128}, {128, 128, 128, 128}, {256, 128, 256, 128}, {384, 128, 384, 128}});
  CHECK(of_window(5000) == of_window(0));
}

TEST_CASE("a call has all keys that its queries see, and less than a tile more") {
  for (const std::int64_t length : {256, 384, 400}) {  // chunks of 64, 96 and 100 with cp 2
    for (const std::int64_t window : kWindows) {
      const Job job = windowed_job({window}, 2, length);
      for (const OpKind kind : {OpKind::kAttentionForward, OpKind::kAttentionBackward}) {
        for (const Call& call : calls(job, gathered(2), kind)) {
          CAPTURE(length);
          CAPTURE(window);
          CAPTURE(call.query);
          const std::int64_t first = std::max<std::int64_t>(0, call.query - window + 1);
          CHECK(call.key <= first);
          CHECK(first - call.key < 64);
          CHECK(call.key + call.keys == call.query + call.queries);
          // What the kernels call bottom right.
          CHECK(call.query - call.key == call.keys - call.queries);
          CHECK((call.key == 0 || (call.query - call.key) % 64 == 0));
        }
      }
    }
  }
}

TEST_CASE("keys and their gradients are read and written where the call says that they stand") {
  const Job job = windowed_job({0, 100}, 2, 512);
  const std::int64_t width = 2 * 2 * 4;  // keys and values of two heads of 4
  std::set<std::int64_t> sequences;
  const std::vector<Program> programs = lower_all(job, gathered(2));
  CHECK_NOTHROW(require_sound(programs));
  for (const Program& program : programs) {
    for (const Operation& op : program.operations) {
      if (!is_attention(op)) {
        continue;
      }
      const bool is_forward = op.kind == OpKind::kAttentionForward;
      const View& keys = op.in[is_forward ? 1 : 2];
      const View& values = op.in[is_forward ? 2 : 3];
      const std::int64_t sequence = keys.offset / (512 * width);
      CHECK(keys.stride == width);
      CHECK(keys.offset == (sequence * 512 + op.attributes.key_position) * width);
      CHECK(values.offset == keys.offset + width / 2);
      CHECK(values.rows == keys.rows);
      sequences.insert(sequence);
      if (!is_forward) {
        CHECK(op.attributes.accumulate);
        CHECK(op.out[1].offset == keys.offset);
        CHECK(op.out[1].rows == keys.rows);
        CHECK(op.out[2].offset == values.offset);
        CHECK(op.out[2].rows == keys.rows);
      }
    }
  }
  CHECK(sequences.size() == 2);
}

TEST_CASE(
    "gradients of gathered keys arrive where the keys lie and are summed into the packed ones") {
  for (const std::int64_t cp : {2, 4}) {
    CAPTURE(cp);
    const Job job = windowed_job({0}, cp, 512);
    const std::int64_t chunk = 512 / (2 * cp);
    constexpr std::int64_t kWidth = 2 * 2 * 4;
    constexpr std::int64_t kPacked = 4 * 4 + kWidth;
    for (const Program& program : lower_all(job, gathered(cp))) {
      CAPTURE(program.rank);
      std::vector<const Operation*> exchanges, sums;
      for (const Operation& op : program.operations) {
        CHECK(op.label != "backward.attention.key_value_gradients.own");
        CHECK((op.kind != OpKind::kReduceScatter || op.stream != Stream::kTensor));
        if (op.kind == OpKind::kExchange) {
          exchanges.push_back(&op);
        } else if (op.kind == OpKind::kSumParts) {
          sums.push_back(&op);
        }
      }
      REQUIRE(exchanges.size() >= 4);
      REQUIRE(sums.size() == exchanges.size());
      for (std::size_t i = 0; i < 4; ++i) {  // of the first microbatch: two chunks of two sequences
        const Operation& exchange = *exchanges[i];
        const Operation& sum = *sums[i];
        const std::int64_t first = static_cast<std::int64_t>(i / 2) * 512 * kWidth;
        const auto begin = [&](std::int64_t member) {
          return first + (i % 2 == 0 ? member : 2 * cp - 1 - member) * chunk * kWidth;
        };
        for (std::int64_t member = 0; member < cp; ++member) {
          const auto at = static_cast<std::size_t>(member);
          CHECK(exchange.in[at].offset == begin(member));
          CHECK(exchange.out[at].offset == begin(member));
          CHECK(exchange.in[at].elements() == chunk * kWidth);
          CHECK(exchange.out[at].elements() == chunk * kWidth);
        }
        CHECK(exchange.stream == Stream::kTensor);
        CHECK(sum.stream == Stream::kCompute);
        CHECK(sum.in[0].tensor == exchange.out[0].tensor);
        CHECK(sum.in[0].offset == std::min(begin(0), begin(cp - 1)));
        CHECK(sum.in[0].elements() == cp * chunk * kWidth);
        CHECK(sum.in[1] == exchange.in[static_cast<std::size_t>(program.rank)]);
        CHECK(sum.attributes.member == (i % 2 == 0 ? program.rank : cp - 1 - program.rank));
        CHECK(sum.out[0].offset == static_cast<std::int64_t>(i) * chunk * kPacked + 4 * 4);
        CHECK(sum.out[0].rows == chunk);
        CHECK(sum.out[0].cols == kWidth);
        CHECK(sum.out[0].stride == kPacked);
      }
    }
  }
}

TEST_CASE("gathered keys within windows give the loss and gradients of one rank") {
  // Smaller and larger than a chunk of 96, with and without a cut at the start of the sequence.
  for (const std::int64_t window : {5, 65, 97, 150, 300}) {
    CAPTURE(window);
    const Job one = windowed_job({window, 0}, 1, 384);
    const Batch batch = random_batch(one, 3);
    const StepResult expected = run_step(one, {}, batch);
    for (const std::int64_t cp : {2, 4}) {
      CAPTURE(cp);
      const Job job = windowed_job({window, 0}, cp, 384);
      const StepResult result = run_step(job, gathered(cp), batch);
      CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-12));
      CHECK(worst_relative_difference(result.gradients, expected.gradients) < 1e-10);
      CHECK(bitwise_equal(run_step(job, gathered(cp), batch).gradients, result.gradients));
    }
  }
}

TEST_CASE("a rank rotates both chunks of all sequences in one call, gathered or in a ring") {
  for (const CpMethod method : {CpMethod::kAllGather, CpMethod::kRing}) {
    for (const std::int64_t cp : {1, 2, 4}) {
      Plan plan = gathered(cp);
      plan.cp_method = method;
      for (const Program& program : lower_all(windowed_job({0}, cp, 512), plan)) {
        CAPTURE(program.rank);
        const std::int64_t chunk = cp == 1 ? 256 : 512 / (2 * cp);
        for (const char* label : {"forward.attention.rope", "backward.attention.rope"}) {
          const std::vector<Operation> calls = operations(program, OpKind::kRope, label);
          REQUIRE(calls.size() == 1);
          CHECK(calls[0].in[0].rows == 4 * chunk);
          CHECK(calls[0].attributes.batch == 2);
          CHECK(calls[0].attributes.query_position == program.rank * chunk);
          // Chunk 2 * cp - 1 - rank follows chunk `rank`.
          CHECK(calls[0].attributes.position_gap == 2 * (cp - 1 - program.rank) * chunk);
        }
      }
    }
  }
}

TEST_CASE("a rank's own keys of all chunks are one copy in front of the gathers") {
  for (const Program& program : one_layer()) {
    for (const std::string pass : {"forward", "backward"}) {
      const std::string label = pass + ".attention.gathered_key_values";
      const std::vector<Operation> copies = operations(program, OpKind::kCopy, label + ".own");
      const std::vector<Operation> gathers = operations(program, OpKind::kAllGather, label);
      REQUIRE(copies.size() == 1);
      REQUIRE(gathers.size() == 4);
      REQUIRE(copies[0].out.size() == 4);
      for (std::size_t i = 0; i < gathers.size(); ++i) {
        CHECK(copies[0].out[i] == gathers[i].in[0]);
      }
      CHECK(bytes_of(program, copies[0]) == 2 * 4 * 128 * 16 * 2);  // 16 columns of two bytes
    }
  }
}

TEST_CASE("attention on a sequence does not wait for the keys of the next one") {
  for (const Program& program : one_layer()) {
    for (const std::string pass : {"forward", "backward"}) {
      const std::vector<Operation> gathers =
          operations(program, OpKind::kAllGather, pass + ".attention.gathered_key_values");
      REQUIRE(gathers.size() == 4);
      std::int64_t waited_for = 0;
      for (const Operation& op : program.operations) {
        if (op.label != pass + ".attention.core") {
          continue;
        }
        const View& keys = op.in[op.kind == OpKind::kAttentionForward ? 1 : 2];
        const std::int64_t sequence = keys.offset / (512 * keys.stride);
        for (std::int64_t i = 0; i < 4; ++i) {
          const bool waits =
              gathers[static_cast<std::size_t>(i)].records >= 0 &&
              std::ranges::count(op.waits, gathers[static_cast<std::size_t>(i)].records) > 0;
          CHECK((!waits || i / 2 == sequence));
          waited_for += waits ? 1 : 0;
        }
      }
      CHECK(waited_for >= 2);
    }
  }
}

TEST_CASE("a copy of pairs that do not fit or overlap is refused") {
  check_refused([](Program& p) { own_copy(p).in.pop_back(); },
                {"(copy ", "has 3 inputs, expected 4"});
  check_refused([](Program& p) { own_copy(p).out.pop_back(); },
                {"(copy ", "has 4 inputs, expected 3"});
  check_refused([](Program& p) { own_copy(p).out.clear(); },
                {"(copy ", "has 0 outputs, expected 1"});
  check_refused([](Program& p) { own_copy(p).in[2] = {}; },
                {"(copy ", "lacks number 2 of its inputs"});
  check_refused([](Program& p) { --own_copy(p).out[3].rows; },
                {"(copy ", "'attention.gathered_key_values'", "the input's shape"});
  check_refused([](Program& p) { --own_copy(p).in[3].cols; },
                {"(copy ", "'attention.gathered_key_values'", "the input's shape"});
  check_refused([](Program& p) { own_copy(p).out[3] = own_copy(p).out[0]; },
                {"(copy ", "'attention.gathered_key_values'", "apart from all others"});
  check_refused([](Program& p) { own_copy(p).in[3] = own_copy(p).out[0]; },
                {"(copy ", "'attention.gathered_key_values'", "apart from all others"});
}

TEST_CASE("a chunk that is not copied is read without a write") {
  check_refused(
      [](Program& p) {
        own_copy(p).in.pop_back();
        own_copy(p).out.pop_back();
      },
      {"(all_gather forward.attention.gathered_key_values)", "nothing has written"});
}

TEST_CASE("a rotation of other rows than two halves of every sequence is refused") {
  check_refused([](Program& p) { rotation(p).attributes.batch = 0; },
                {"(rope ", "sequences of one length"});
  check_refused([](Program& p) { rotation(p).attributes.batch = 3; },
                {"(rope ", "sequences of one length"});
  check_refused([](Program& p) { rotation(p).attributes.query_position = -1; },
                {"(rope ", "positions from 0 on"});
  check_refused([](Program& p) { rotation(p).attributes.position_gap = -1; },
                {"(rope ", "positions from 0 on"});
  check_refused(
      [](Program& p) {
        rotation(p).attributes.batch = rotation(p).in[0].rows;
        rotation(p).attributes.position_gap = 1;
      },
      {"(rope ", "an even number of rows"});
  check_refused([](Program& p) { --rotation(p).out[0].rows; }, {"(rope ", "the input's shape"});
}

TEST_CASE("every layer has a workspace for the longest call of the model") {
  const auto workspace = [](const std::vector<std::int64_t>& windows, std::int64_t length) {
    std::set<std::int64_t> bytes;
    const Job job = windowed_job(windows, 2, length);
    const Plan plan = gathered(2);
    const ByteEquality equality(job, plan);
    for (const Program& program : lower_all(job, plan)) {
      CHECK(equality.difference(program).value_or("") == "");
      for (const Tensor& tensor : program.tensors) {
        if (tensor.name == "attention.backward_workspace") {
          bytes.insert(tensor.bytes);
        }
      }
    }
    REQUIRE(bytes.size() == 1);
    return *bytes.begin();
  };
  // Chunks of 128 queries and 4 query heads of 4 on 2 of keys, in fp32: 128 * (1 + 4) of a query
  // head and 4 of each of its keys, in all rounded up to whole 256 bytes behind 256 of the
  // frontend, and 128 of the log-sum-exp; and keys and values of 2 heads in bf16.
  const auto bytes = [](std::int64_t keys) {
    return 4 * (4 * (128 * 5 + keys * 4)) + 256 + 4 * 4 * 128 + 2 * keys * 2 * 2 * 4;
  };
  CHECK(workspace({0}, 512) == bytes(512));
  CHECK(workspace({65}, 512) == bytes(128 + 64));
  CHECK(workspace({66}, 512) == bytes(128 + 128));
  CHECK(workspace({65, 66}, 512) == bytes(128 + 128));
  CHECK(workspace({65, 0, 66}, 512) == bytes(512));
  CHECK(workspace({400}, 512) == bytes(512));
  for (const std::int64_t window : kWindows) {
    workspace({window}, 400);
    workspace({window, 0}, 400);
  }
}

}  // namespace shardplan
