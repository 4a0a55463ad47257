// Exchanges and the sums of what they leave, which together are reduce-scatters: tensor parallelism
// in several pieces, and gradients of gathered keys and values.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "estimator/plan/number.h"
#include "tests/validator/layouts.h"
#include "tests/validator/refused.h"
#include "validator/check/checks.h"
#include "validator/check/operations.h"
#include "validator/program/operation_work.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {
namespace {

using Programs = std::vector<Program>;
using Break = std::function<void(Program&)>;

Plan sequence_parallel(std::int64_t tp) {
  return {.tp = tp, .sequence_parallel = true};
}

Programs exchanging_programs(std::int64_t tp) {
  return lower_all(tiny_job(wide_model(), tp), sequence_parallel(tp));
}

std::int64_t count(const Program& program, OpKind kind) {
  return std::ranges::count(program.operations, kind, &Operation::kind);
}

Operation& first(Program& program, OpKind kind) {
  return *std::ranges::find(program.operations, kind, &Operation::kind);
}

// Moves the view to a tensor of its own behind all others.
void put_elsewhere(Program& program, View& view, DType dtype) {
  const std::int64_t bytes = round_up(view.elements() * bytes_of(dtype), kTensorAlignment);
  program.tensors.push_back({.component = Component::kCommunication,
                             .name = "elsewhere",
                             .dtype = dtype,
                             .rows = view.rows,
                             .cols = view.cols,
                             .bytes = bytes,
                             .arena = Arena::kDynamic,
                             .offset = program.dynamic_bytes,
                             .born = 0,
                             .dies = std::ssize(program.operations) - 1});
  program.dynamic_bytes += round_up(bytes, kArenaMultiple);
  view.tensor = std::ssize(program.tensors) - 1;
  view.offset = 0;
}

// Gathered keys: parts by member.
Programs gathering_programs(std::int64_t cp) {
  return lower_all(tiny_job(tiny_model(), cp), {.cp = cp, .cp_method = CpMethod::kAllGather});
}

// The k-th of its kind.
Operation& number(Program& program, OpKind kind, std::int64_t k) {
  for (Operation& op : program.operations) {
    if (op.kind == kind && k-- == 0) {
      return op;
    }
  }
  throw std::logic_error("no such operation");
}

void check_gathered_refused(const Break& breaks, const std::vector<std::string>& texts) {
  Programs programs = gathering_programs(2);
  breaks(programs[1]);
  check_problem(problems_of(programs), texts, "rank 1");
}

// Every text must stand in one message about the programs of two ranks, of which rank 1's is
// broken.
void check_refused(const Break& breaks, const std::vector<std::string>& texts) {
  Programs programs = exchanging_programs(2);
  breaks(programs[1]);
  check_problem(problems_of(programs), texts, "rank 1");
}

// One member of a group on the host: what it brings, what it gets and its sums in two ways.
struct Member {
  std::vector<double> brings;
  std::vector<double> gets;
  std::vector<double> sum;
  std::vector<double> scattered;
};

HostView<double> view_of(std::vector<double>& values, std::int64_t first, std::int64_t size) {
  return {.data = values.data() + first, .rows = 1, .cols = size, .row_step = size, .step = 1};
}

HostView<double> view_of(std::vector<double>& values) {
  return view_of(values, 0, std::ssize(values));
}

void sum_twice(HostCommunicator<double>& communicator, const Group& group, std::int64_t self,
               Member& member) {
  const std::int64_t part = std::ssize(member.sum);
  const auto run = [&](OpKind kind, const HostView<double>& out) {
    const Operation op = {.kind = kind};
    communicator.run(op, group, self,
                     {.attributes = op.attributes, .in = {view_of(member.brings)}, .out = {out}});
  };
  run(OpKind::kReduceScatter, view_of(member.scattered));
  run(OpKind::kExchange, view_of(member.gets));
  const OpAttributes attributes = {.member = self};
  run_on_host<double>(OpKind::kSumParts,
                      {.attributes = attributes,
                       .in = {view_of(member.gets), view_of(member.brings, self * part, part)},
                       .out = {view_of(member.sum)}});
}

// A member whose views of others' parts lie in reverse order, and whose sum has gaps.
struct ReversedMember {
  std::vector<double> brings;
  std::vector<double> gets;
  std::vector<double> sum;
};

void exchange_reversed(HostCommunicator<double>& communicator, const Group& group,
                       std::int64_t self, std::int64_t rows, ReversedMember& member) {
  constexpr std::int64_t kWidth = 2;
  const std::int64_t size = std::ssize(group.ranks);
  const std::int64_t part = rows * kWidth;
  const auto of_member = [&](std::vector<double>& values) {
    std::vector<HostView<double>> views;
    for (std::int64_t i = size - 1; i >= 0; --i) {
      views.push_back(view_of(values, i * part, part));
    }
    return views;
  };
  const Operation op = {.kind = OpKind::kExchange};
  communicator.run(
      op, group, self,
      {.attributes = op.attributes, .in = of_member(member.brings), .out = of_member(member.gets)});
  const OpAttributes attributes = {.member = size - 1 - self};
  const HostView<double> sum = {
      .data = member.sum.data(), .rows = rows, .cols = kWidth, .row_step = kWidth + 1, .step = 1};
  run_on_host<double>(
      OpKind::kSumParts,
      {.attributes = attributes,
       .in = {view_of(member.gets), view_of(member.brings, attributes.member * part, part)},
       .out = {sum}});
}

}  // namespace

TEST_CASE("parts by member are summed in the order in which they lie, into rows that lie apart") {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kPart = kRows * 2;
  constexpr double kUntouched = 1e300;
  for (const std::int64_t size : {2, 4, 8}) {
    CAPTURE(size);
    Group group;
    std::vector<ReversedMember> members(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      group.ranks.push_back(i);
      ReversedMember& member = members[static_cast<std::size_t>(i)];
      for (std::int64_t e = 0; e < size * kPart; ++e) {
        member.brings.push_back(initial_value("brought", e, static_cast<std::uint64_t>(i)));
      }
      member.gets.assign(member.brings.size(), kUntouched);
      member.sum.assign(kRows * 3, kUntouched);
    }
    HostCommunicator<double> communicator;
    on_threads(members.size(), [&](std::size_t i) {
      exchange_reversed(communicator, group, static_cast<std::int64_t>(i), kRows, members[i]);
    });
    for (std::int64_t i = 0; i < size; ++i) {
      const ReversedMember& member = members[static_cast<std::size_t>(i)];
      for (std::int64_t e = 0; e < kPart; ++e) {
        double want = 0;
        for (std::int64_t from = size - 1; from >= 0; --from) {
          const std::int64_t place = (size - 1 - i) * kPart + e;
          const double brought =
              members[static_cast<std::size_t>(from)].brings[static_cast<std::size_t>(place)];
          want += brought;
          const double got = member.gets[static_cast<std::size_t>((size - 1 - from) * kPart + e)];
          CHECK(got == (from == i ? kUntouched : brought));
        }
        CHECK(member.sum[static_cast<std::size_t>(e / 2 * 3 + e % 2)] == want);
      }
      for (std::size_t row = 0; row < kRows; ++row) {
        CHECK(member.sum[row * 3 + 2] == kUntouched);
      }
    }
  }
}

TEST_CASE("an exchange and the sum of its parts have a reduce-scatter's bits") {
  constexpr std::int64_t kPart = 5;
  constexpr double kUntouched = 1e300;
  for (const std::int64_t size : {2, 3, 4, 8}) {
    CAPTURE(size);
    Group group;
    std::vector<Member> members(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      group.ranks.push_back(i);
      Member& member = members[static_cast<std::size_t>(i)];
      for (std::int64_t e = 0; e < size * kPart; ++e) {
        member.brings.push_back(initial_value("brought", e, static_cast<std::uint64_t>(i)));
      }
      member.gets.assign(member.brings.size(), kUntouched);
      member.sum.assign(kPart, 0);
      member.scattered.assign(kPart, 0);
    }
    HostCommunicator<double> communicator;
    on_threads(members.size(), [&](std::size_t i) {
      sum_twice(communicator, group, static_cast<std::int64_t>(i), members[i]);
    });
    for (std::int64_t i = 0; i < size; ++i) {
      const Member& member = members[static_cast<std::size_t>(i)];
      CHECK(member.sum == member.scattered);
      for (std::int64_t e = 0; e < size * kPart; ++e) {
        const std::int64_t from = e / kPart;
        const Member& other = members[static_cast<std::size_t>(from)];
        const double brought = other.brings[static_cast<std::size_t>(i * kPart + e % kPart)];
        CHECK(member.gets[static_cast<std::size_t>(e)] == (from == i ? kUntouched : brought));
      }
    }
  }
}

// A part that nothing has written is no number here: a sum that read it would be none. Gradients of
// norms are summed over the tokens piece by piece.
TEST_CASE("tokens in pieces, whose sums are exchanged, give the bits of tokens in one piece") {
  for (const std::int64_t tp : {2, 4, 8}) {
    CAPTURE(tp);
    Job job = tiny_job(wide_model(), tp);
    const Program in_pieces = lower(job, sequence_parallel(tp), 0, {});
    CHECK(count(in_pieces, OpKind::kExchange) > 0);
    CHECK(count(in_pieces, OpKind::kExchange) == count(in_pieces, OpKind::kSumParts));
    StepResult result = run_step(job, sequence_parallel(tp), random_batch(job, 3));
    job.profile.tensor_parallel_chunk_tokens = job.sequence_length;
    CHECK(count(lower(job, sequence_parallel(tp), 0, {}), OpKind::kExchange) == 0);
    StepResult want = run_step(job, sequence_parallel(tp), random_batch(job, 3));
    for (StepResult* one : {&result, &want}) {
      const auto is_of_norm = [](const auto& entry) {
        return entry.first.find("norm") != std::string::npos;
      };
      CHECK(std::erase_if(one->gradients, is_of_norm) == 2 * 4 + 1);
    }
    CHECK(result.loss == want.loss);
    CHECK(bitwise_equal(result.gradients, want.gradients));
  }
}

TEST_CASE("an exchange between views of other sizes, types or parts is refused") {
  check_refused([](Program& p) { --first(p, OpKind::kExchange).out[0].rows; },
                {"(exchange ", "'exchanged_tokens'", "the input's size"});
  check_refused(
      [](Program& p) {
        for (View* view :
             {&first(p, OpKind::kExchange).in[0], &first(p, OpKind::kExchange).out[0]}) {
          view->rows = 1;
          view->cols = 3;
        }
      },
      {"(exchange ", "one part for every member"});
  check_refused(
      [](Program& p) { put_elsewhere(p, first(p, OpKind::kExchange).out[0], DType::kFp32); },
      {"(exchange ", "'elsewhere'", "expected bf16"});
  check_refused(
      [](Program& p) {
        View& out = first(p, OpKind::kExchange).out[0];
        out = columns_of(out, 0, out.cols - 1);
      },
      {"(exchange ", "'exchanged_tokens'", "a contiguous view"});
}

TEST_CASE("an exchange into what the others still read is refused") {
  check_refused(
      [](Program& p) {
        Operation& op = first(p, OpKind::kExchange);
        op.out = op.in;
      },
      {"(exchange ", "a buffer of its own"});
}

TEST_CASE("a sum of other parts than the members' is refused") {
  check_refused([](Program& p) { --first(p, OpKind::kSumParts).in[0].rows; },
                {"(sum_parts ", "'exchanged_tokens'", "one part for every member"});
  check_refused([](Program& p) { --first(p, OpKind::kSumParts).in[1].rows; },
                {"(sum_parts ", "the size of this member's own part"});
  for (const std::int64_t member : {-1, 0, 2}) {
    check_refused([&](Program& p) { first(p, OpKind::kSumParts).attributes.member = member; },
                  {"(sum_parts ", "expected part " + std::to_string(member) + " left", "found 1"});
  }
  check_refused(
      [](Program& p) {
        View& parts = first(p, OpKind::kSumParts).in[0];
        put_elsewhere(p, parts, DType::kBf16);
      },
      {"(sum_parts ", "'elsewhere'", "expected part 1 left", "found -1"});
  check_gathered_refused(
      [](Program& p) {
        View& parts = first(p, OpKind::kSumParts).in[0];
        parts.offset += parts.elements() / 4;
      },
      {"(sum_parts ", "'attention.gathered_key_values'", "expected part 1 left", "found -1"});
  check_refused([](Program& p) { first(p, OpKind::kSumParts).group = -1; },
                {"(sum_parts ", "has group -1"});
  check_refused(
      [](Program& p) { put_elsewhere(p, first(p, OpKind::kSumParts).in[0], DType::kFp32); },
      {"(sum_parts ", "'elsewhere'", "expected bf16"});
}

TEST_CASE("a sum goes to its own part or to the one that it does not read, not to another's") {
  // Rank 1 of two: the others' part comes first.
  const auto put_at = [](std::int64_t part) {
    return [part](Program& p) {
      Operation& op = first(p, OpKind::kSumParts);
      const std::int64_t size = op.out[0].elements();
      op.out[0] = {.tensor = op.in[0].tensor,
                   .offset = op.in[0].offset + part * size,
                   .rows = 1,
                   .cols = size,
                   .stride = size};
    };
  };
  check_refused(put_at(0), {"(sum_parts ", "'exchanged_tokens'", "none of the others' parts"});
  Programs programs = exchanging_programs(2);
  put_at(1)(programs[1]);
  CHECK(operation_problems(programs[1]).empty());
  Operation& op = first(programs[1], OpKind::kSumParts);
  op.out[0] = op.in[1];
  CHECK(operation_problems(programs[1]).empty());
  check_refused(
      [](Program& p) {
        Operation& sum = first(p, OpKind::kSumParts);
        sum.out[0] = sum.in[1];
        sum.out[0].offset -= sum.out[0].cols;
      },
      {"(sum_parts ", "this member's own part in place"});
}

TEST_CASE("whoever reads the own part of what was exchanged reads what nothing has written") {
  const auto read_part = [](Program& p, std::int64_t part) {
    Operation& op = first(p, OpKind::kSumParts);
    const View parts = op.in[0];
    const std::int64_t size = op.out[0].elements();
    op = {.kind = OpKind::kCopy,
          .in = {{.tensor = parts.tensor,
                  .offset = parts.offset + part * size,
                  .rows = op.out[0].rows,
                  .cols = op.out[0].cols,
                  .stride = op.out[0].cols}},
          .out = op.out,
          .waits = op.waits,
          .records = op.records};
  };
  check_refused([&](Program& p) { read_part(p, 1); },
                {"copy", "'exchanged_tokens'", "nothing has written"});
  Programs programs = exchanging_programs(2);
  read_part(programs[1], 0);
  CHECK(problems_of(programs) == Problems{});
}

TEST_CASE("an exchange by member with other views than one of a size for everyone is refused") {
  check_gathered_refused([](Program& p) { first(p, OpKind::kExchange).group = -1; },
                         {"(exchange ", "has group -1"});
  check_gathered_refused([](Program& p) { first(p, OpKind::kExchange).out.pop_back(); },
                         {"(exchange ", "has 1 outputs, expected 2"});
  check_gathered_refused([](Program& p) { first(p, OpKind::kExchange).in.pop_back(); },
                         {"(exchange ", "has 1 inputs, expected 2"});
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    check_gathered_refused([&](Program& p) { --first(p, OpKind::kExchange).out[i].rows; },
                           {"(exchange ", "'attention.gathered_key_values'", "the input's size"});
    check_gathered_refused(
        [&](Program& p) { put_elsewhere(p, first(p, OpKind::kExchange).out[i], DType::kFp32); },
        {"(exchange ", "'elsewhere'", "expected bf16"});
    check_gathered_refused(
        [&](Program& p) {
          Operation& op = first(p, OpKind::kExchange);
          op.out[i] = op.in[1];
        },
        {"(exchange ", "'attention.key_value_gradients'", "a buffer of its own"});
  }
  check_gathered_refused([](Program& p) { --first(p, OpKind::kExchange).in[1].rows; },
                         {"(exchange ", "'attention.key_value_gradients'", "the other inputs"});
  check_gathered_refused(
      [](Program& p) { put_elsewhere(p, first(p, OpKind::kExchange).in[1], DType::kFp32); },
      {"(exchange ", "'elsewhere'", "expected bf16"});
  check_gathered_refused(
      [](Program& p) {
        Operation& op = first(p, OpKind::kExchange);
        op.out[1] = op.out[0];
      },
      {"(exchange ", "'attention.gathered_key_values'", "a buffer of its own"});
  check_gathered_refused(
      [](Program& p) {
        View& out = first(p, OpKind::kExchange).out[0];
        out = columns_of(out, 0, out.cols - 1);
      },
      {"(exchange ", "'attention.gathered_key_values'", "a contiguous view"});
}

// Of each sequence chunks 0 to c - 1 lie in the order of the ranks, c to 2c - 1 in reverse.
TEST_CASE("a sum takes the part that its exchange has left out, whose place only that one tells") {
  for (const std::int64_t cp : {2, 4}) {
    for (Program& program : gathering_programs(cp)) {
      for (const std::int64_t k : {0, 1}) {
        Operation& sum = number(program, OpKind::kSumParts, k);
        const std::int64_t place = k == 0 ? program.rank : cp - 1 - program.rank;
        CHECK(sum.attributes.member == place);
        sum.attributes.member = cp - 1 - place;
        check_problem(operation_problems(program),
                      {"(sum_parts ", "found " + std::to_string(place)});
        sum.attributes.member = place;
      }
      CHECK(operation_problems(program).empty());
    }
  }
}

TEST_CASE("a sum into rows that lie apart has its own part's shape and is not in its place") {
  check_gathered_refused([](Program& p) { first(p, OpKind::kSumParts).out[0].cols /= 2; },
                         {"(sum_parts ", "the size of this member's own part"});
  check_gathered_refused(
      [](Program& p) {
        View& out = first(p, OpKind::kSumParts).out[0];
        out.rows *= 2;
        out.cols /= 2;
      },
      {"(sum_parts ", "the shape of this member's own part"});
  check_gathered_refused(
      [](Program& p) {
        Operation& op = first(p, OpKind::kSumParts);
        op.in[1] = op.out[0];
      },
      {"(sum_parts ", "a contiguous view"});
  // Two rows of half the width, of which the second would be the own part's third.
  check_gathered_refused(
      [](Program& p) {
        Operation& op = first(p, OpKind::kSumParts);
        View& own = op.in[1];
        own = {.tensor = own.tensor,
               .offset = own.offset,
               .rows = own.rows,
               .cols = own.cols,
               .stride = own.stride};
        op.out[0] = own;
        op.out[0].rows *= 2;
        op.out[0].cols /= 2;
        own.rows *= 2;
        own.cols /= 2;
        own.stride /= 2;
      },
      {"(sum_parts ", "this member's own part in place"});
}

TEST_CASE("a sum that does not wait for the exchange is a hazard") {
  check_refused([](Program& p) { first(p, OpKind::kSumParts).waits.clear(); },
                {"(sum_parts ", "'exchanged_tokens'", "exchange", "stream tensor"});
}

TEST_CASE("an exchange that does not wait for the calls that add to what it sends is a hazard") {
  check_gathered_refused(
      [](Program& p) { first(p, OpKind::kExchange).waits.clear(); },
      {"(exchange ", "'attention.key_value_gradients'", "attention_backward", "stream compute"});
}

TEST_CASE("an exchange by member moves the views of the others") {
  Program program = gathering_programs(4)[1];
  Operation& exchange = first(program, OpKind::kExchange);
  REQUIRE(exchange.in.size() == 4);
  const std::int64_t part = exchange.in[0].elements();
  CHECK(bytes_of(program, exchange) == static_cast<double>(2 * 3 * part * 2));
  CHECK(read_views(program, exchange) ==
        std::vector{exchange.in[0], exchange.in[2], exchange.in[3]});
  CHECK(written_views(program, exchange) ==
        std::vector{exchange.out[0], exchange.out[2], exchange.out[3]});
}

TEST_CASE("an exchange and its sum move the parts of the others, and a sum its own, too") {
  Program program = exchanging_programs(4)[1];
  Operation& exchange = first(program, OpKind::kExchange);
  Operation& sum = first(program, OpKind::kSumParts);
  for (View* view : {&exchange.in[0], &exchange.out[0], &sum.in[0]}) {
    view->rows = 1;
    view->cols = 40;
  }
  for (View* view : {&sum.in[1], &sum.out[0]}) {
    view->rows = 1;
    view->cols = 10;
  }
  CHECK(bytes_of(program, exchange) == 2 * 30 * 2);  // read and written, of two bytes each
  CHECK(bytes_of(program, sum) == (30 + 10 + 10) * 2);
  CHECK(flops_of(sum) == 0);
}

}  // namespace shardplan
