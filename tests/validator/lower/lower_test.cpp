#include "validator/lower/lower.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

std::string refusal(const Job& job, const Plan& plan) {
  try {
    lower(job, plan, 0, {});
  } catch (const std::logic_error& error) { return error.what(); }
  return "";
}

std::int64_t bytes_named(const Program& program, const std::string& name) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : program.tensors) { bytes += tensor.name == name ? tensor.bytes : 0; }
  return bytes;
}

}  // namespace

TEST_CASE("what is not lowered is refused by the name of its field") {
  const Job job = tiny_job(tiny_model(), 4);
  CHECK(refusal(job, {.pp = 2, .vpp = 2, .schedule = Schedule::kZbv}) ==
        "lower: not lowered: plan.schedule: zbv");
  CHECK(refusal(job, {.cp = 2, .cp_method = CpMethod::kA2a}) ==
        "lower: not lowered: plan.cp_method: a2a");
  CHECK(refusal(job, {.tp = 4}) == "lower: not lowered: plan.tp: 4 with num_kv_heads 2");
  Job moe = tiny_job(tiny_moe(), 4);
  moe.model.moe.router_bias = true;
  CHECK(refusal(moe, {}) == "lower: not lowered: model.moe: shared_gate or router_bias");
}

TEST_CASE("state of one rank, counted by hand") {
  // Elements: embedding 30 * 16 = 480, so the layers start at 512; a layer has qkv 32 * 16,
  // projection 16 * 16, gate and up 48 * 16 and down 16 * 24, together 1920; four end at 8192. Head
  // 480: the norms start at 8704, nine of them at multiples of 64 end at 9232, rounded up to 128:
  // 9344.
  const Program program = lower(tiny_job(tiny_model(), 1), {}, 0, {});
  CHECK(bytes_named(program, "weights") == 2 * 9344);
  CHECK(bytes_named(program, "main_gradients") == 4 * 9344);
  CHECK(bytes_named(program, "master_weights") == 4 * 9344);
  // Ranks that share weights: units of 512, 2048 four times and 1024, multiples of 4 * 128.
  const Program shard = lower(tiny_job(tiny_model(), 4), {.zero = 1}, 0, {});
  CHECK(bytes_named(shard, "weights") == 2 * 9728);
  CHECK(bytes_named(shard, "master_weights") == 4 * 9728 / 4);
}

TEST_CASE("1F1B keeps as many microbatches as there are stages behind a rank, GPipe keeps all") {
  const Job job = tiny_job(tiny_model(), 4);
  const auto slots = [&](Schedule schedule, std::int64_t rank) {
    const Program program = lower(job, {.pp = 4, .schedule = schedule}, rank, {});
    std::vector<std::int64_t> offsets;
    for (const Tensor& tensor : program.tensors) {
      if (tensor.name == "attention.packed_qkv") {
        offsets.push_back(tensor.offset);
      }
    }
    std::ranges::sort(offsets);
    return static_cast<std::int64_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
  };
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    CHECK(slots(Schedule::k1F1B, rank) == 4 - rank);
    CHECK(slots(Schedule::kGpipe, rank) == 8);
  }
}

TEST_CASE("of the head one gradient [U,h] stays for the backward pass") {
  const Program program = lower(tiny_job(tiny_model(), 1), {}, 0, {});
  std::int64_t kept = 0;
  for (const Tensor& tensor : program.tensors) {
    const bool is_of_head =
        tensor.name.starts_with("final_norm") || tensor.name.starts_with("head");
    CHECK_FALSE((is_of_head && tensor.placement == Placement::kSlot));
    kept += tensor.name == "output_gradient" && tensor.placement == Placement::kSlot ? 1 : 0;
  }
  CHECK(kept == 8);  // microbatches
}

TEST_CASE("bytes alive never exceed the arenas, and recomputing everything lowers their peak") {
  const Job job = tiny_job(tiny_model(), 1);
  const auto peak = [&](const Plan& plan) {
    const Program program = lower(job, plan, 0, {});
    const std::vector<std::int64_t> live = live_bytes(program);
    const std::int64_t most = *std::ranges::max_element(live);
    CHECK(most <= program.persistent_bytes + program.dynamic_bytes);
    return most;
  };
  CHECK(peak({.recompute = {.granularity = RecomputeGranularity::kFull}}) < peak({}));
}

TEST_CASE("tensor-parallel ranks gather and sum pieces of tokens beside the products of others") {
  // 16 tokens in pieces of at most 5 are four, of 2 rows of the 8 that a rank holds.
  const Plan plan{.tp = 2, .sequence_parallel = true};
  const auto operations = [&](const Program& program, const std::string& label) {
    std::vector<Operation> found;
    for (const Operation& op : program.operations) {
      if (op.label == label && op.microbatch == 0 && op.layer == 1) {
        found.push_back(op);
      }
    }
    return found;
  };
  const Program program = lower(tiny_job(tiny_model(), 2), plan, 0, {});
  const auto rows = [](const View& like, std::int64_t first, std::int64_t count) {
    return View{
        .tensor = like.tensor, .offset = first * 16, .rows = count, .cols = 16, .stride = 16};
  };
  for (const char* label : {"forward.attention.gathered_input", "backward.ffn.gathered_gradient"}) {
    const std::vector<Operation> copies = operations(program, label + std::string(".own"));
    const std::vector<Operation> gathers = operations(program, label);
    REQUIRE(copies.size() == 4);
    REQUIRE(gathers.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto piece = static_cast<std::int64_t>(i);
      CHECK(gathers[i].kind == OpKind::kAllGather);
      CHECK(copies[i].in[0] == rows(copies[i].in[0], 2 * piece, 2));
      CHECK(copies[i].out[0] == rows(gathers[i].out[0], 4 * piece, 2));  // rank 0's part is first
      CHECK(gathers[i].in[0] == copies[i].out[0]);
      CHECK(gathers[i].out[0] == rows(gathers[i].out[0], 4 * piece, 4));
      CHECK(gathers[i].stream == Stream::kTensor);
      CHECK(copies[i].stream == Stream::kCompute);
    }
  }
  // Partial sums lie a piece behind the start of their cell, where those of the ranks arrive.
  for (const char* label : {"forward.ffn.down", "backward.ffn.norm_gradient"}) {
    const std::vector<Operation> exchanges = operations(program, label + std::string(".exchange"));
    const std::vector<Operation> sums = operations(program, label + std::string(".sum"));
    REQUIRE(exchanges.size() == 4);
    REQUIRE(sums.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto piece = static_cast<std::int64_t>(i);
      const View& partial = exchanges[i].in[0];
      CHECK(partial == rows(partial, 4 + 4 * piece, 4));
      CHECK(exchanges[i].out[0] == rows(partial, 4 * piece, 4));
      CHECK(sums[i].in[0] == exchanges[i].out[0]);
      CHECK(sums[i].in[1] == rows(partial, 4 + 4 * piece, 2));
      CHECK(sums[i].out[0] == rows(sums[i].out[0], 2 * piece, 2));
      CHECK(exchanges[i].stream == Stream::kTensor);
      CHECK(sums[i].stream == Stream::kCompute);
    }
  }
  for (const char* label :
       {"forward.attention.qkv", "forward.ffn.down", "backward.ffn.gate_up.input_gradient"}) {
    CHECK(operations(program, label).size() == 4);
  }
  CHECK(operations(program, "backward.ffn.gate_up.weight_gradient").size() == 1);
  // The product of the first piece does not wait for the second one's gather.
  const std::vector<Operation> gathers = operations(program, "forward.ffn.gathered_input");
  const std::vector<Operation> products = operations(program, "forward.ffn.gate_up");
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(products[i].waits == std::vector<std::int64_t>{gathers[i].records});
  }
  // Experts count the rows of a rank by sequence.
  const Program experts = lower(tiny_job(tiny_moe(), 2), plan, 0, {});
  CHECK(operations(experts, "forward.attention.gathered_input").size() == 1);
  CHECK(operations(experts, "forward.attention.projection.reduce").size() == 1);
}

TEST_CASE("a residual addition in front of a norm is one operation with it") {
  const Program program = lower(tiny_job(tiny_model(), 1), {}, 0, {});
  const auto count = [&](OpKind kind) {
    return std::ranges::count(program.operations, kind, &Operation::kind);
  };
  // 8 microbatches of 4 layers with two additions; the last is followed by the final norm, whose
  // output lies where the addend lay.
  CHECK(count(OpKind::kAddRmsNormForward) == 8 * 7);
  CHECK(count(OpKind::kAdd) == 8);
}

}  // namespace shardplan
