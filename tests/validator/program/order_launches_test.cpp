// Laws of the order of launches, whatever the times are that it is chosen by; and of the additions
// and norms of pieces that become one operation.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/validator/layouts.h"
#include "validator/check/checks.h"
#include "validator/check/streams.h"
#include "validator/program/builder.h"

namespace shardplan {
namespace {

using Numbers = std::vector<std::int64_t>;

Plan sequence_parallel(std::int64_t tp) {
  return {.tp = tp, .sequence_parallel = true};
}

struct Subject {
  std::string what;
  std::int64_t world = 2;
  Plan plan;
};

std::vector<Subject> subjects() {
  return {{"tp 2", 2, sequence_parallel(2)},
          {"tp 4, vocabulary shards of 8, 8, 8 and 5 entries", 4, sequence_parallel(4)},
          {"two stages, full recompute",
           4,
           {.tp = 2,
            .pp = 2,
            .zero = 1,
            .sequence_parallel = true,
            .recompute = {.granularity = RecomputeGranularity::kFull},
            .schedule = Schedule::k1F1B}},
          {"zero bubble",
           4,
           {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = Schedule::kZbH1}},
          {"ring, ZeRO 3",
           8,
           {.tp = 2, .cp = 2, .zero = 3, .sequence_parallel = true, .cp_method = CpMethod::kRing}},
          {"gathered keys, of which the last rank's calls see few gradients of others",
           8,
           {.tp = 2,
            .cp = 4,
            .micro_batch = 2,
            .sequence_parallel = true,
            .cp_method = CpMethod::kAllGather}}};
}

std::vector<Program> lowered(const Subject& subject) {
  ModelSpec model = tiny_model();
  model.num_kv_heads = 4;
  return lower_all(tiny_job(model, subject.world), subject.plan);
}

const Operation& at(const Program& program, std::int64_t operation) {
  return program.operations[static_cast<std::size_t>(operation)];
}

Numbers places_of(const Numbers& launches) {
  Numbers places(launches.size(), -1);
  for (std::size_t i = 0; i < launches.size(); ++i) {
    places[static_cast<std::size_t>(launches[i])] = static_cast<std::int64_t>(i);
  }
  return places;
}

// Where the actions begin, and one past the last operation.
Numbers bounds_of(const Program& program) {
  Numbers bounds = {0};
  for (const CutPoint& cut : program.cuts) { bounds.push_back(cut.operation); }
  bounds.push_back(std::ssize(program.operations));
  return bounds;
}

struct Touch {
  Arena arena = Arena::kDynamic;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool writes = false;
};

std::vector<Touch> touches_of(const Program& program, const Operation& op) {
  std::vector<Touch> touches;
  const auto add = [&](const View& view, bool writes) {
    if (view.present()) {
      const Tensor& tensor = program.tensors[static_cast<std::size_t>(view.tensor)];
      const std::int64_t size = bytes_of(tensor.dtype);
      touches.push_back({.arena = tensor.arena,
                         .begin = tensor.offset + view.offset * size,
                         .end = tensor.offset + view.end() * size,
                         .writes = writes});
    }
  };
  for (const View& view : read_views(program, op)) { add(view, false); }
  for (const View& view : written_views(program, op)) { add(view, true); }
  return touches;
}

bool share_bytes(const std::vector<Touch>& some, const std::vector<Touch>& others) {
  return std::ranges::any_of(some, [&](const Touch& a) {
    return std::ranges::any_of(others, [&](const Touch& b) {
      return (a.writes || b.writes) && a.arena == b.arena && a.begin < b.end && b.begin < a.end;
    });
  });
}

// Operations of one action that share bytes, one of them writing: the earlier one of the list
// first.
std::vector<std::pair<std::int64_t, std::int64_t>> sharing_pairs(const Program& program) {
  std::vector<std::vector<Touch>> touches;
  for (const Operation& op : program.operations) { touches.push_back(touches_of(program, op)); }
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  const Numbers bounds = bounds_of(program);
  for (std::size_t action = 0; action + 1 < bounds.size(); ++action) {
    for (std::int64_t a = bounds[action]; a < bounds[action + 1]; ++a) {
      for (std::int64_t b = a + 1; b < bounds[action + 1]; ++b) {
        if (share_bytes(touches[static_cast<std::size_t>(a)],
                        touches[static_cast<std::size_t>(b)])) {
          pairs.emplace_back(a, b);
        }
      }
    }
  }
  return pairs;
}

// What the tp ranks do together, in the order of its launches.
std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> meetings(const Program& program) {
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> found;
  for (const std::int64_t i : launch_order(program)) {
    const Operation& op = at(program, i);
    if (op.stream == Stream::kTensor) {
      found.emplace_back(op.label, op.microbatch, op.layer);
    }
  }
  return found;
}

// Products of 4 pieces of 2048 tokens that take longer than what they exchange.
Job large_job(std::int64_t tp) {
  ModelSpec model = tiny_model();
  model.hidden = 8192;
  model.ffn = 28672;
  model.num_heads = 64;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  Job job = tiny_job(model, tp);
  job.sequence_length = 8192;
  job.profile.tensor_parallel_chunk_tokens = 2048;
  job.global_batch = 1;
  return job;
}

// A residual stream of two pieces: x' = x + y and its norm, piece by piece.
struct Pieces {
  Program program;
  std::vector<Operation> additions;
  std::vector<Operation> norms;
};

Pieces two_pieces() {
  Pieces pieces;
  const auto tensor = [&](const std::string& name, DType dtype, std::int64_t rows,
                          std::int64_t cols) {
    std::vector<Tensor>& tensors = pieces.program.tensors;
    tensors.push_back({.component = Component::kActivations,
                       .name = name,
                       .dtype = dtype,
                       .rows = rows,
                       .cols = cols,
                       .bytes = 1024,
                       .arena = Arena::kDynamic,
                       .offset = 1024 * std::ssize(tensors)});
    return View{
        .tensor = std::ssize(tensors) - 1, .offset = 0, .rows = rows, .cols = cols, .stride = cols};
  };
  const View x = tensor("x", DType::kBf16, 8, 16);
  const View y = tensor("y", DType::kBf16, 8, 16);
  const View sum = tensor("sum", DType::kBf16, 8, 16);
  const View normed = tensor("normed", DType::kBf16, 8, 16);
  const View rstd = tensor("rstd", DType::kFp32, 8, 1);
  const View weight = tensor("weight", DType::kBf16, 1, 16);
  for (const std::int64_t row : {0, 4}) {
    const auto part = [&](const View& view) { return rows_of(view, row, 4); };
    pieces.additions.push_back({.kind = OpKind::kAdd,
                                .in = {part(x), part(y)},
                                .out = {part(sum)},
                                .layer = 0,
                                .label = "add"});
    pieces.norms.push_back({.kind = OpKind::kRmsNormForward,
                            .in = {part(sum), weight},
                            .out = {part(normed), part(rstd)},
                            .layer = 0,
                            .label = "norm"});
  }
  return pieces;
}

std::vector<OpKind> kinds_of(const Program& program) {
  std::vector<OpKind> kinds;
  std::ranges::transform(program.operations, std::back_inserter(kinds), &Operation::kind);
  return kinds;
}

}  // namespace

TEST_CASE("every operation is launched once, between the cut points of its action") {
  for (const Subject& subject : subjects()) {
    CAPTURE(subject.what);
    for (const Program& program : lowered(subject)) {
      REQUIRE(program.launches.size() == program.operations.size());
      const Numbers bounds = bounds_of(program);
      for (std::size_t action = 0; action + 1 < bounds.size(); ++action) {
        Numbers of_action(program.launches.begin() + bounds[action],
                          program.launches.begin() + bounds[action + 1]);
        std::ranges::sort(of_action);
        Numbers want;
        for (std::int64_t i = bounds[action]; i < bounds[action + 1]; ++i) { want.push_back(i); }
        CHECK(of_action == want);
      }
    }
  }
}

TEST_CASE("operations that share bytes are launched in the order of the list, others are not") {
  for (const Subject& subject : subjects()) {
    CAPTURE(subject.what);
    const Program program = lowered(subject)[0];
    const Numbers places = places_of(program.launches);
    const auto pairs = sharing_pairs(program);
    CHECK(pairs.size() > program.operations.size());
    CHECK(std::ranges::count_if(pairs, [&](const auto& pair) {
            return places[static_cast<std::size_t>(pair.first)] >
                   places[static_cast<std::size_t>(pair.second)];
          }) == 0);
    CHECK_FALSE(std::ranges::is_sorted(program.launches));
  }
}

TEST_CASE("streams other than those of products and of tensor parallelism keep their order") {
  for (const Subject& subject : subjects()) {
    CAPTURE(subject.what);
    for (const Program& program : lowered(subject)) {
      std::map<Stream, Numbers> launches;
      for (const std::int64_t i : program.launches) {
        launches[at(program, i).stream].push_back(i);
      }
      for (const auto& [stream, operations] : launches) {
        if (stream != Stream::kCompute && stream != Stream::kTensor) {
          CHECK(std::ranges::is_sorted(operations));
        }
      }
    }
  }
}

TEST_CASE("tp ranks meet in one order, also where their shards of the vocabulary differ") {
  for (const Subject& subject : subjects()) {
    CAPTURE(subject.what);
    const std::vector<Program> programs = lowered(subject);
    CHECK(problems_of(programs) == Problems{});
    for (const Program& program : programs) {
      const std::int64_t first_rank = program.rank - program.rank % subject.plan.tp;
      CHECK(meetings(program) == meetings(programs[static_cast<std::size_t>(first_rank)]));
    }
  }
}

// Chunks of cp ranks lie elsewhere in what they gather: their copies overwrite what others have
// read.
TEST_CASE("cp ranks meet in one order where they gather keys and recompute attention") {
  ModelSpec model = tiny_model();
  model.num_kv_heads = 4;
  for (const std::int64_t cp : {2, 4}) {
    for (const std::int64_t micro_batch : {1, 2}) {
      for (const std::int64_t length : {16, 32}) {
        for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1}) {
          Job job = tiny_job(model, 4 * cp);
          job.sequence_length = length;
          const Plan plan = {.tp = 2,
                             .cp = cp,
                             .pp = 2,
                             .micro_batch = micro_batch,
                             .sequence_parallel = true,
                             .recompute = {.granularity = RecomputeGranularity::kSelective,
                                           .modules = {.core_attn = true}},
                             .schedule = schedule,
                             .cp_method = CpMethod::kAllGather};
          CAPTURE(text_of(plan));
          CAPTURE(length);
          CHECK(problems_of(lower_all(job, plan)) == Problems{});
        }
      }
    }
  }
}

TEST_CASE(
    "keys are gathered and their gradients exchanged in the order of the list on every rank") {
  Subject subject = subjects().back();
  for (const std::int64_t window : {0, 1, 65, 100}) {
    CAPTURE(window);
    ModelSpec model = tiny_model();
    model.layers.front().attention_window = window;
    Job job = tiny_job(model, subject.world);
    job.sequence_length = 1024;
    job.profile.tensor_parallel_chunk_tokens = 128;
    const std::vector<Program> programs = lower_all(job, subject.plan);
    CHECK(problems_of(programs) == Problems{});
    for (const Program& program : programs) {
      Numbers of_keys;
      for (const std::int64_t i : program.launches) {
        const Operation& op = at(program, i);
        if (is_communication(op.kind) && op.stream == Stream::kTensor &&
            program.groups[static_cast<std::size_t>(op.group)].kind == GroupKind::kCp) {
          of_keys.push_back(i);
        }
      }
      CHECK(of_keys.size() > 4 * 4);
      CHECK(std::ranges::is_sorted(of_keys));
    }
  }
}

TEST_CASE("the next product's first gather is launched before the last piece of the one before") {
  const Program program = lower(large_job(2), sequence_parallel(2), 0, {});
  const Numbers places = places_of(program.launches);
  // Launches of a label in a layer.
  const auto launches = [&](const std::string& label, std::int64_t layer) {
    Numbers found;
    for (std::int64_t i = 0; i < std::ssize(program.operations); ++i) {
      if (at(program, i).label == label && at(program, i).layer == layer) {
        found.push_back(places[static_cast<std::size_t>(i)]);
      }
    }
    return found;
  };
  const auto overlap = [&](const std::string& product, std::int64_t layer,
                           const std::string& gather, std::int64_t next_layer) {
    CAPTURE(product);
    CAPTURE(layer);
    const Numbers products = launches(product, layer);
    const Numbers gathers = launches(gather, next_layer);
    REQUIRE(products.size() == 4);
    REQUIRE(gathers.size() == 4);
    CHECK(std::ranges::min(gathers) < std::ranges::max(products));
  };
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    overlap("forward.attention.projection", layer, "forward.ffn.gathered_input", layer);
    overlap("backward.ffn.gate_up.input_gradient", layer, "backward.attention.gathered_gradient",
            layer);
    if (layer > 0) {
      overlap("forward.ffn.down", layer - 1, "forward.attention.gathered_input", layer);
      overlap("backward.attention.qkv.input_gradient", layer, "backward.ffn.gathered_gradient",
              layer - 1);
    }
  }
}

TEST_CASE("without pieces that are exchanged, operations are launched as they are listed") {
  const auto num_launches = [](const Job& job, const Plan& plan) {
    const Program program = lower(job, plan, 0, {});
    CHECK(launch_order(program).size() == program.operations.size());
    CHECK(std::ranges::is_sorted(launch_order(program)));
    return program.launches.size();
  };
  Job job = tiny_job(tiny_model(), 2);
  CHECK(num_launches(job, {.tp = 2}) == 0);
  CHECK(num_launches(tiny_job(tiny_model(), 1), {}) == 0);
  CHECK(num_launches(tiny_job(tiny_moe(), 2), sequence_parallel(2)) == 0);
  CHECK(num_launches(job, {.cp = 2, .cp_method = CpMethod::kAllGather}) == 0);
  job.profile.tensor_parallel_chunk_tokens = job.sequence_length;
  CHECK(num_launches(job, sequence_parallel(2)) == 0);
}

TEST_CASE("operations that share bytes and are launched the other way round are a hazard") {
  Program program = lowered({"tp 2", 2, sequence_parallel(2)})[0];
  REQUIRE(stream_problems(program).empty());
  const Numbers places = places_of(program.launches);
  const auto pairs = sharing_pairs(program);
  std::int64_t missed = 0;
  for (std::size_t i = 0; i < pairs.size(); i += 301) {
    const auto swap = [&] {
      std::swap(
          program
              .launches[static_cast<std::size_t>(places[static_cast<std::size_t>(pairs[i].first)])],
          program.launches[static_cast<std::size_t>(
              places[static_cast<std::size_t>(pairs[i].second)])]);
    };
    swap();
    missed += stream_problems(program).empty() ? 1 : 0;
    swap();
  }
  CHECK(pairs.size() > 301 * 10);
  CHECK(missed == 0);
}

TEST_CASE("additions of pieces become one operation with the norms behind, pair by pair") {
  Pieces pieces = two_pieces();
  Program& program = pieces.program;
  program.operations = {pieces.additions[0], pieces.additions[1], pieces.norms[0], pieces.norms[1]};
  program.cuts = {{.operation = 0, .label = "forward"}};
  fuse_add_norm(program);
  REQUIRE(kinds_of(program) == std::vector{OpKind::kAddRmsNormForward, OpKind::kAddRmsNormForward});
  for (std::size_t i = 0; i < 2; ++i) {
    const Operation& op = program.operations[i];
    const Operation& addition = pieces.additions[i];
    const Operation& norm = pieces.norms[i];
    CHECK(op.in == std::vector{addition.in[0], norm.in[1], addition.in[1]});
    CHECK(op.out == std::vector{norm.out[0], norm.out[1], addition.out[0]});
    CHECK(op.label == "norm");
  }
  CHECK(program.cuts[0].operation == 0);
}

TEST_CASE("additions are not fused with norms across a cut point or another operation") {
  const Pieces pieces = two_pieces();
  const Operation other = {.kind = OpKind::kCopy,
                           .in = pieces.norms[0].in,
                           .out = pieces.norms[0].out,
                           .layer = 0,
                           .label = "copy"};
  Program cut = pieces.program;
  cut.operations = {pieces.additions[0], pieces.additions[1], pieces.norms[0], pieces.norms[1]};
  cut.cuts = {{.operation = 0, .label = "forward"}, {.operation = 2, .label = "forward"}};
  fuse_add_norm(cut);
  CHECK(kinds_of(cut) ==
        std::vector{OpKind::kAdd, OpKind::kAdd, OpKind::kRmsNormForward, OpKind::kRmsNormForward});
  CHECK(cut.cuts[1].operation == 2);
  cut = pieces.program;  // between the additions: the second piece alone
  cut.operations = {pieces.additions[0], pieces.additions[1], pieces.norms[1], pieces.norms[0]};
  cut.cuts = {{.operation = 0, .label = "forward"}, {.operation = 1, .label = "forward"}};
  fuse_add_norm(cut);
  CHECK(kinds_of(cut) ==
        std::vector{OpKind::kAdd, OpKind::kAddRmsNormForward, OpKind::kRmsNormForward});
  CHECK(cut.cuts[1].operation == 1);
  Program apart = pieces.program;
  apart.operations = {pieces.additions[0], other, pieces.norms[0]};
  fuse_add_norm(apart);
  CHECK(kinds_of(apart) == std::vector{OpKind::kAdd, OpKind::kCopy, OpKind::kRmsNormForward});
}

TEST_CASE("all pieces of a layer's residual additions are fused") {
  const Program program = lower(tiny_job(tiny_model(), 2), sequence_parallel(2), 0, {});
  const std::vector<OpKind> kinds = kinds_of(program);
  // 8 microbatches of 4 layers with two additions in 4 pieces; the final norm is never fused.
  CHECK(std::ranges::count(kinds, OpKind::kAddRmsNormForward) == 8 * 7 * 4);
  CHECK(std::ranges::count(kinds, OpKind::kAdd) == 8 * 4);
}

}  // namespace shardplan
