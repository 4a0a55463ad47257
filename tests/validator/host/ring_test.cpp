// Ring attention as operations: what is computed, what travels and what may overlap.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/validator/layouts.h"
#include "tests/validator/lower/byte_equality.h"

namespace shardplan {
namespace {

Plan ring(std::int64_t cp) {
  return {.cp = cp, .micro_batch = 2, .cp_method = CpMethod::kRing};
}

bool is_in(const Operation& op, const std::string& phase, std::int64_t layer) {
  return op.microbatch == 0 && op.layer == layer && op.label.starts_with(phase);
}

// Pairs of a query and a key that one layer's forward attention computes.
std::int64_t computed_pairs(const Program& program, std::int64_t layer) {
  std::int64_t pairs = 0;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::kAttentionForward && is_in(op, "forward", layer)) {
      pairs += op.in[0].rows * op.in[1].rows;
    }
  }
  return pairs;
}

std::int64_t count(const Program& program, OpKind kind, const std::string& phase) {
  return std::ranges::count_if(program.operations, [&](const Operation& op) {
    return op.kind == kind && is_in(op, phase, 0);
  });
}

}  // namespace

TEST_CASE("every rank of a ring computes the same blocks, and none that the mask hides") {
  for (const std::int64_t cp : {2, 4}) {
    const Job job = tiny_job(tiny_model(), cp);
    const std::int64_t chunk = job.sequence_length / (2 * cp);
    for (const Program& program : lower_all(job, ring(cp))) {
      // Two sequences: the own two chunks as one square, then half of a square on every hop.
      CHECK(computed_pairs(program, 0) == 2 * (4 + 2 * (cp - 1)) * chunk * chunk);
    }
  }
}

TEST_CASE("a window that reaches the neighbouring chunk leaves out all blocks beyond it") {
  const Job job = tiny_job(wide_model(), 4);  // chunks of 2 tokens, a window of 5
  for (const Program& program : lower_all(job, ring(4))) {
    std::int64_t blocks = 0;
    for (const Operation& op : program.operations) {
      if (op.kind == OpKind::kAttentionForward && is_in(op, "forward", 1)) {
        const OpAttributes& a = op.attributes;
        CHECK(a.key_position <= a.query_position);
        CHECK(a.query_position - (a.key_position + 1) < 5);
        ++blocks;
      }
    }
    // Chunk q sees chunks q - 2, q - 1 and q: 8 + 7 + 6 blocks of all ranks for each sequence.
    const std::int64_t early = program.rank;
    const std::int64_t late = 7 - program.rank;
    CHECK(blocks ==
          2 * (std::min<std::int64_t>(early, 2) + 1 + std::min<std::int64_t>(late, 2) + 1));
  }
}

TEST_CASE("a window shorter than a chunk leaves out queries that see no key of a block") {
  Job job = tiny_job(wide_model(), 2);
  job.sequence_length = 32;  // chunks of 8 tokens, a window of 5
  for (const Program& program : lower_all(job, ring(2))) {
    std::int64_t partial = 0;
    for (const Operation& op : program.operations) {
      if (op.kind == OpKind::kAttentionForward && is_in(op, "forward", 1)) {
        const OpAttributes& a = op.attributes;
        const std::int64_t last_query = a.query_position + op.in[0].rows - 1;
        const std::int64_t last_key = a.key_position + op.in[1].rows - 1;
        CHECK(last_query - 5 < last_key);
        partial += op.in[0].rows == 4 ? 1 : 0;  // of 8: queries 8 to 11 see key 7
      }
    }
    // Rank 0 has chunks 0 and 3, rank 1 has 1 and 2: of each sequence one and two neighbours.
    CHECK(partial == 2 * (program.rank + 1));
  }
}

TEST_CASE("where windows hide hops, programs stay within the estimate and reach its peak") {
  for (const std::int64_t cp : {2, 4, 8}) {
    for (const std::int64_t window : {2, 3, 5, 6, 9, 14, 40}) {  // chunks of 4 tokens
      CAPTURE(cp);
      CAPTURE(window);
      Job job = tiny_job(wide_model(), cp);
      job.sequence_length = 8 * cp;
      for (LayerSpec& layer : job.model.layers) { layer.attention_window = window; }
      const Plan plan = ring(cp);
      const ByteEquality equality(job, plan);
      for (const Program& program : lower_all(job, plan)) {
        CHECK(equality.difference(program).value_or("") == "");
      }
    }
  }
}

TEST_CASE("a window of one key leaves a ring no blocks: less memory than the estimate's") {
  Job job = tiny_job(wide_model(), 4);
  for (LayerSpec& layer : job.model.layers) { layer.attention_window = 1; }
  const StagePeaks peaks = plan_pieces(job, ring(4)).stages.front().peaks;
  for (const Program& program : lower_all(job, ring(4))) {
    for (const Operation& op : program.operations) { CHECK(op.kind != OpKind::kLseMerge); }
    CHECK(std::ranges::max(live_bytes(program)) <= peaks.peak_bytes);
    CHECK(program.dynamic_bytes <= peaks.dynamic_arena_bytes);
  }
}

TEST_CASE("keys travel cp - 1 hops, their gradients one more: home") {
  for (const std::int64_t cp : {2, 4}) {
    const Program program = lower_all(tiny_job(tiny_model(), cp), ring(cp))[0];
    CHECK(count(program, OpKind::kRingShift, "forward") == cp - 1);
    CHECK(count(program, OpKind::kRingShift, "backward") == cp - 1 + cp);
  }
}

TEST_CASE("attention does not wait for the keys and gradients that arrive meanwhile") {
  const Program program = lower_all(tiny_job(tiny_model(), 4), ring(4))[1];
  std::int64_t overlaps = 0;
  for (std::size_t i = 0; i + 1 < program.operations.size(); ++i) {
    const Operation& shift = program.operations[i];
    const Operation& next = program.operations[i + 1];
    if (shift.kind != OpKind::kRingShift || shift.stream != Stream::kContext ||
        next.stream != Stream::kCompute) {
      continue;
    }
    REQUIRE(shift.records >= 0);
    const bool is_attention =
        next.kind == OpKind::kAttentionForward || next.kind == OpKind::kAttentionBackward;
    overlaps += is_attention && std::ranges::count(next.waits, shift.records) == 0 ? 1 : 0;
  }
  // 4 microbatches of 4 layers: keys on three hops in either direction, and behind the last of them
  // the gradients.
  CHECK(overlaps == 4 * 4 * (3 + 3 + 1));
}

TEST_CASE("what is summed over hops is fp32: output, query gradients, travelling gradients") {
  const Program program = lower_all(tiny_job(tiny_model(), 2), ring(2))[0];
  for (const Tensor& tensor : program.tensors) {
    if (tensor.name == "attention.ring_output" || tensor.name == "attention.ring_query_gradient" ||
        tensor.name == "attention.ring_key_value_gradients") {
      CHECK(tensor.dtype == DType::kFp32);
    }
  }
}

}  // namespace shardplan
