// Zero bubble H1 as operations: what each of its actions computes, and what stays between them.
#include <doctest/doctest.h>

#include <set>

#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

Plan zero_bubble(const Recompute& recompute = {}) {
  return {.tp = 2,
          .pp = 4,
          .sequence_parallel = true,
          .recompute = recompute,
          .schedule = Schedule::kZbH1};
}

std::vector<Program> lowered(const Plan& plan) {
  return lower_all(tiny_job(tiny_model(), 8), plan);
}

// Places where tensors of this name lie.
std::int64_t places(const Program& program, const std::string& name) {
  std::set<std::int64_t> offsets;
  for (const Tensor& tensor : program.tensors) {
    if (tensor.name == name && tensor.placement == Placement::kSlot) {
      offsets.insert(tensor.offset);
    }
  }
  return static_cast<std::int64_t>(offsets.size());
}

bool is_weight_gradient(const Operation& op) {
  return op.label.ends_with("weight_gradient") && op.kind != OpKind::kFill;
}

}  // namespace

TEST_CASE("backward computes no weight gradient and the weight action nothing else") {
  for (const Program& program : lowered(zero_bubble())) {
    std::int64_t gradients = 0;
    for (const Operation& op : program.operations) {
      if (op.label.starts_with("backward.")) {
        CHECK_FALSE(is_weight_gradient(op));
      }
      if (op.label.starts_with("weight.")) {
        const bool prepares =
            op.kind == OpKind::kAllGather || op.kind == OpKind::kFill || op.label.ends_with(".own");
        const bool reduces = op.stream == Stream::kData;
        CHECK((is_weight_gradient(op) || prepares || reduces));
        gradients += is_weight_gradient(op) ? 1 : 0;
      }
    }
    // 8 microbatches, one layer of four products; the first stage adds the embedding.
    CHECK(gradients == 8 * (program.rank < 2 ? 5 : 4));
  }
}

TEST_CASE("together as many microbatches wait on every stage as 1F1B keeps on the first") {
  for (const Program& program : lowered(zero_bubble())) {
    const std::int64_t stage = program.rank / 2;
    CHECK(places(program, "attention.packed_qkv") == 4 - stage);  // until backward
    CHECK(places(program, "ffn.activation") == 4);                // until the weight gradient
    CHECK(places(program, "ffn.gate_up_gradient") == stage + 1);  // from backward until then
  }
}

TEST_CASE("under full recomputation nothing but a layer's input waits for backward") {
  const Recompute full{.granularity = RecomputeGranularity::kFull};
  for (const Program& program : lowered(zero_bubble(full))) {
    const std::int64_t stage = program.rank / 2;
    CHECK(places(program, "input") == 4 - stage);
    CHECK(places(program, "attention.packed_qkv") == 0);
    // Backward writes what the weight gradients read.
    CHECK(places(program, "ffn.activation") == stage + 1);
    CHECK(places(program, "attention.output") == stage + 1);
  }
}

TEST_CASE("what is written again for a weight gradient waits beside the gradients") {
  const Recompute selective{.granularity = RecomputeGranularity::kSelective,
                            .modules = {.core_attn = true, .layernorm = true, .mlp = true}};
  for (const Program& program : lowered(zero_bubble(selective))) {
    const std::int64_t stage = program.rank / 2;
    for (const char* name : {"attention.norm_output", "attention.output", "ffn.norm_output",
                             "ffn.activation", "ffn.gate_up_gradient"}) {
      CHECK(places(program, name) == stage + 1);
    }
    CHECK(places(program, "attention.log_sum_exp") == 0);
  }
}

TEST_CASE("pending weight gradients hold no gathered rows: they gather them again") {
  const Program program = lowered(zero_bubble())[2];
  CHECK(places(program, "gathered_inputs") == 0);
  std::int64_t gathers = 0;
  for (const Operation& op : program.operations) {
    gathers += op.kind == OpKind::kAllGather && op.label.starts_with("weight.") ? 1 : 0;
  }
  // The inputs of two products, the gradients of the other two; each in four pieces.
  CHECK(gathers == 8 * 4 * 4);
}

}  // namespace shardplan
