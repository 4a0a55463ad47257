// What layers of Qwen3-Next-80B-A3B keep under Megatron-LM, counted by hand: hidden size 2048;
// three of four layers are gated delta nets with 16 key and 32 value heads of 128, the fourth is
// gated attention with 16 heads of 256 and 2 of keys; sequences of 4096.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/framework.h"
#include "estimator/ledger/layer_blocks.h"
#include "estimator/plan/parameters.h"
#include "estimator/time/host_time.h"
#include "tests/estimator/broken_plans.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kKeys = 16 * 128;
constexpr std::int64_t kValues = 32 * 128;
constexpr std::int64_t kHeads = 32;
const Plan kEightRanks = {.ep = 8};

Job qwen3_next_job() {
  const Library library;
  Job job;
  job.model = library.model("qwen3-next-80b-a3b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 8;
  job.model.num_mtp_layers = 0;
  return job;
}

const BlockMemory& block_of(const BlockSet& blocks, BlockKind kind) {
  return blocks[static_cast<std::size_t>(kind)];
}

std::int64_t kept_bytes(const Job& job, BlockKind kind, const Plan& plan = kEightRanks) {
  return block_of(block_set(job, plan), kind).summary.kept_bytes;
}

std::int64_t row_bytes(const Job& job, std::string_view name, const Plan& plan = kEightRanks) {
  const BlockSet blocks = block_set(job, plan);
  const std::vector<BlockRow>& rows = block_of(blocks, BlockKind::kMoeLayer).rows;
  const auto row = std::ranges::find(rows, name, &BlockRow::name);
  return row == rows.end() ? 0 : row->bytes;
}

TEST_CASE("the first kind of layers is the delta net, every fourth one another kind") {
  const Job job = qwen3_next_job();
  const LayerBlocks blocks(job);
  CHECK(blocks.kind_of(0) == BlockKind::kMoeLayer);
  CHECK(blocks.kind_of(2) == BlockKind::kMoeLayer);
  CHECK(blocks.kind_of(3) == BlockKind::kOtherLayer);
  CHECK(layer_of(job, BlockKind::kMoeLayer).mixer == MixerKind::kGatedDelta);
  CHECK(layer_of(job, BlockKind::kOtherLayer).mixer == MixerKind::kAttention);
  CHECK(num_layer_kinds(job.model) <= kMostLayerKinds);
}

// core/ssm/gated_delta_net.py: the convolution's input; queries and keys of length 1, their
// lengths, and both repeated for 32 heads; values; three numbers of decay in fp32 and a step a
// head; 64 of a chunk's triangle; the rule's output with its norm's root, the normed output, the
// gate and their product. Attention: q, k and v in one layout, inputs of the norms of q and k, a
// sum a head, the output, the gate and their product.
TEST_CASE("delta nets keep what their convolution, norms, rule and gate save") {
  const Job job = qwen3_next_job();
  const std::int64_t delta = 2 * (2 * kKeys + kValues) + 2 * 2 * kKeys + 2 * 4 * 16 +
                             2 * 2 * kHeads * 128 + 2 * kValues + 3 * 4 * kHeads + 2 * kHeads +
                             2 * 64 * kHeads + 4 * 2 * kValues + 4 * kHeads;
  const std::int64_t attention = 2 * 20 * 256 + 2 * 18 * 256 + 4 * 16 + 3 * 2 * 16 * 256;
  CHECK(kept_bytes(job, BlockKind::kMoeLayer) - kept_bytes(job, BlockKind::kOtherLayer) ==
        kTokens * (delta - attention));
}

TEST_CASE("tp divides what delta nets keep but for what is hidden wide") {
  const Job job = qwen3_next_job();
  const auto of_delta = [&](std::int64_t tp) {
    const BlockSet blocks = block_set(job, {.tp = tp, .ep = 4, .sequence_parallel = tp > 1});
    std::int64_t bytes = 0;
    for (const BlockRow& row : block_of(blocks, BlockKind::kMoeLayer).rows) {
      bytes += row.name.starts_with("delta.") ? row.bytes : 0;
    }
    return bytes;
  };
  CHECK(of_delta(1) == 2 * of_delta(2));
}

// A state of 128 x 128 a head for 64 tokens; backward states and their gradients.
TEST_CASE("the rule holds a state of every chunk while it runs") {
  const Job job = qwen3_next_job();
  const std::int64_t states = 2 * kTokens / 64 * kHeads * 128 * 128;
  CHECK(row_bytes(job, "delta.chunk_states") == states);
  CHECK(row_bytes(job, "delta.state_gradients") == 2 * states);
  CHECK(row_bytes(job, "delta.packed") == 2 * kTokens * (2 * kKeys + 2 * kValues + 2 * kHeads));
}

// Published: 79,674,391,296 parameters without the prediction module (transformers' class of the
// published configuration).
TEST_CASE("a rank of one holds the parameters of the checkpoint, pipelines divide them") {
  Job job = qwen3_next_job();
  CHECK(count_parameters(job.model) == 79'674'391'296);
  job.cluster.gpus_per_node = 1;
  job.global_batch = 4;
  const auto parameters = [&](const Plan& plan) {
    std::int64_t elements = 0;
    for (const StagePieces& stage : plan_pieces(job, plan).stages) {
      const StageTensors tensors = stage_tensors(job, plan, stage.layout, {});
      elements += tensors.dense + tensors.expert;
    }
    return elements;
  };
  CHECK(parameters({}) == count_parameters(job.model));
  job.cluster.gpus_per_node = 4;
  CHECK(parameters({.pp = 4, .schedule = Schedule::k1F1B}) == count_parameters(job.model));
}

TEST_CASE("stages with other layers need other memory, and the sum of layers is theirs") {
  const Job job = qwen3_next_job();
  const Plan plan = {.pp = 8, .schedule = Schedule::k1F1B};
  const PlanPieces pieces = plan_pieces(job, plan);
  std::int64_t attention = 0;
  std::int64_t delta = 0;
  for (const StagePieces& stage : pieces.stages) {
    attention += count_blocks(stage.layout, BlockKind::kOtherLayer);
    delta += count_blocks(stage.layout, BlockKind::kMoeLayer);
  }
  CHECK(attention == 12);
  CHECK(delta == 36);
}

TEST_CASE("a delta net takes as long for a token of a long sequence as of a short one") {
  Job job = qwen3_next_job();
  const auto seconds = [&](std::int64_t length, std::size_t kind) {
    job.sequence_length = length;
    const BlockTime time = model_times(job, kEightRanks).layers[kind].time;
    return (time.forward_s + time.backward_input_s) / static_cast<double>(length);
  };
  CHECK(seconds(65'536, 0) == doctest::Approx(seconds(32'768, 0)).epsilon(0.02));
  CHECK(seconds(65'536, 1) > 1.2 * seconds(32'768, 1));
}

// The norm's output and the gated one are a byte a number, of which only the products' own copies
// are kept; the rest is as in bf16.
TEST_CASE("in fp8 a delta net keeps the inputs of its products in one byte") {
  const Job job = qwen3_next_job();
  Plan plan = kEightRanks;
  plan.precision = Precision::kFp8;
  REQUIRE(!why_invalid(job, plan));
  CHECK(row_bytes(job, "attention.norm_output", plan) == kTokens * 2048);
  CHECK(row_bytes(job, "attention.projection_input_fp8", plan) == kTokens * kValues);
  CHECK(row_bytes(job, "attention.projection_input_fp8") == 0);
  const auto of_delta = [&](const Plan& each) {
    const BlockSet blocks = block_set(job, each);
    std::int64_t bytes = 0;
    for (const BlockRow& row : block_of(blocks, BlockKind::kMoeLayer).rows) {
      bytes += row.name.starts_with("delta.") ? row.bytes : 0;
    }
    return bytes;
  };
  CHECK(of_delta(plan) == of_delta(kEightRanks));
}

// Two products, with a norm and its roots each; both outputs beside what they make together.
TEST_CASE("a second product in front keeps its own norm's output") {
  const Job job = qwen3_next_job();
  Job two = job;
  two.profile.decoupled_in_proj = true;
  CHECK(kept_bytes(two, BlockKind::kMoeLayer) - kept_bytes(job, BlockKind::kMoeLayer) ==
        kTokens * (2 * 2048 + 4));
  CHECK(kept_bytes(two, BlockKind::kOtherLayer) == kept_bytes(job, BlockKind::kOtherLayer));
  CHECK(row_bytes(two, "delta.products") == row_bytes(job, "delta.packed"));
  Plan plan = kEightRanks;
  plan.precision = Precision::kFp8;
  CHECK(row_bytes(two, "delta.second_norm_output", plan) == kTokens * 2048);
  two.profile.fp8_param_gather = true;  // whose second product stays in bf16
  CHECK(row_bytes(two, "delta.second_norm_output", plan) == 2 * kTokens * 2048);
}

// Megatron-SWIFT's class gathers the sequence in front of the norm, trained or not.
TEST_CASE("beside sequence parallelism two products have the whole sequence in front") {
  Job job = qwen3_next_job();
  const Plan plan = {.tp = 2, .ep = 4, .sequence_parallel = true};
  CHECK(row_bytes(job, "attention.gathered_input", plan) == 0);
  job.profile.decoupled_in_proj = true;
  CHECK(row_bytes(job, "attention.gathered_input", plan) == 2 * kTokens * 2048);
  CHECK(row_bytes(job, "attention.norm_output", plan) == 2 * kTokens * 2048);
  CHECK(row_bytes(job, "delta.second_norm_output", plan) == 2 * kTokens * 2048);
  // Behind them gradients are gathered in bf16, and rounded in both layouts.
  Plan in_fp8 = plan;
  in_fp8.precision = Precision::kFp8;
  CHECK(row_bytes(job, "attention.gathered_projection_gradient", in_fp8) == 2 * kTokens * 2048);
  CHECK(row_bytes(job, "attention.projection_gradient_fp8", in_fp8) == 2 * kTokens * 2048);
}

TEST_CASE("what Megatron-LM refuses of delta nets, and what is not counted of them") {
  check_refused(qwen3_next_job(),
                {{"gated_delta_net_needs_cp_1",
                  [](Job&, Plan& plan) {
                    plan.cp = 2;
                    plan.ep = 4;
                  },
                  {"cp 2", "gated delta nets (qwen3_next)", "cp 1"}},
                 {"delta_heads_divisible_by_tp",
                  [](Job& spoiled, Plan& plan) {
                    spoiled.model.delta.key_heads = 3;
                    plan.tp = 2;
                    plan.sequence_parallel = true;
                    plan.ep = 4;
                  },
                  {"key_heads 3", "tp 2"}},
                 {"fp8_mixer_widths_divisible",
                  [](Job& spoiled, Plan& plan) {
                    spoiled.model.delta.value_heads = 36;
                    spoiled.model.delta.key_heads = 18;
                    plan.precision = Precision::kFp8;
                    spoiled.profile.decoupled_in_proj = true;
                  },
                  {"gated delta nets (qwen3_next)", "16"}},
                 {"unsupported: decoupled_in_proj",
                  [](Job& spoiled, Plan&) {
                    spoiled.profile.decoupled_in_proj = true;
                    spoiled.profile.overlap_moe_expert_parallel_comm = true;
                  },
                  {"decoupled_in_proj true", "exposed"}},
                 {"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 3; }, {"zero 3", "0, 1"}},
                 {"unsupported: attention_backend",
                  [](Job& spoiled, Plan&) { spoiled.profile.deterministic_attention = true; },
                  {"deterministic with gated delta nets"}},
                 {"unsupported: model.layers",
                  [](Job& spoiled, Plan&) {
                    std::vector<LayerSpec>& layers = spoiled.model.layers;
                    layers[0].is_moe = false;
                    layers[3].is_moe = false;
                    layers[7].has_sinks = true;
                  },
                  {"5 kinds (qwen3_next)", "up to 4"}}},
                kEightRanks);
}

}  // namespace
}  // namespace shardplan::megatron
