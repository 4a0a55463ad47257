// torchtitan's mixture of experts: allocation traces of torchtitan v0.2.2 with PyTorch 2.11 on an
// H200 (the other ranks of the process group faked), sizes counted by hand, laws.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/torchtitan/compiled_mixture.h"
#include "estimator/frameworks/torchtitan/timeline.h"
#include "estimator/price/price.h"
#include "tests/estimator/allocation_changes.h"
#include "tests/estimator/frameworks/torchtitan/peaks.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWeight = std::int64_t{32} * 768 * 2048;  // of all experts together

// 32 experts of width 768, eight a token, in each of four layers.
Job mixture(std::int64_t gpus) {
  Job job = llama_job("torchtitan", {.hidden = 2048, .ffn = 768, .heads = 32, .layers = 4}, gpus,
                      4096, gpus);
  job.model.family = "qwen3_moe";
  job.model.moe = {.num_experts = 32, .topk = 8, .expert_ffn = 768};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

Plan sharded(std::int64_t dp, std::int64_t ep) {
  Plan plan;
  plan.dp = dp;
  plan.ep = ep;
  plan.zero = dp > 1 ? 3 : 0;
  return plan;
}

TEST_CASE("a mixture's eager forward allocates and frees as traced") {
  const Job job = mixture(8);
  const Plan plan = sharded(8, 1);
  const TitanSizes sizes(job, plan, true);
  TitanTape tape(0);
  EagerLayer eager(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  eager.forward(layer, LayerPass::kSaves);
  const std::vector<std::int64_t> changes = large_changes(tape.take_events());
  // From the norm in front to the sum behind: 32768 rows of 2048, 33024 with padding.
  constexpr std::int64_t kRows = 134'217'728;
  constexpr std::int64_t kOneMore = kRows + 4096;
  constexpr std::int64_t kPadded = 135'266'304;
  constexpr std::int64_t kInner = 50'724'864;
  constexpr std::int64_t kStream = 16'777'216;
  const std::vector<std::int64_t> traced = {
      kStream,                                        // norm
      kRows,   kOneMore,     kPadded,     -kOneMore,  // picked, joined, padded
      kInner,  kInner,       kInner,      kInner,     // w1, silu, w3, product
      kPadded, kOneMore,     -kPadded,                // w2, without padding
      kRows,   2 * kRows,    2 * kStream,             // in order, in fp32, summed
      kStream, -2 * kStream, -kRows,      -kOneMore, -kRows, kStream, -kStream};
  REQUIRE(changes.size() > traced.size());
  std::vector<std::int64_t> last(changes.end() - std::ssize(traced), changes.end());
  std::vector<std::int64_t> sorted = traced;
  // Frees in a row, which no allocation tells apart, sorted.
  const auto frees = std::ssize(traced) - 5;
  std::sort(last.begin() + frees, last.begin() + frees + 3);
  std::sort(sorted.begin() + frees, sorted.begin() + frees + 3);
  CHECK(last == sorted);
}

// The same with norms of queries and keys, as Qwen3 has them.
Job qwen3_mixture(std::int64_t gpus) {
  Job job = mixture(gpus);
  job.model.qk_norm = true;
  job.model.num_kv_heads = 4;
  job.model.head_dim = 128;
  return job;
}

TEST_CASE("a compiled mixture's graphs save and drop as traced") {
  Job job = qwen3_mixture(8);
  job.profile.compile = true;
  const TitanSizes sizes(job, sharded(8, 1), true);
  TitanTape tape(0);
  CompiledMixture layer_of(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  layer.rotary_cast = tape.make(sizes.rotary_cast);
  layer_of.forward(layer, LayerPass::kSaves);
  constexpr std::int64_t kRows = 134'217'728;
  constexpr std::int64_t kOneMore = kRows + 4096;
  constexpr std::int64_t kPadded = 135'266'304;
  constexpr std::int64_t kInner = 50'724'864;
  constexpr std::int64_t kStream = 16'777'216;
  constexpr std::int64_t kQuery = 33'554'432;
  constexpr std::int64_t kKey = 4'194'304;
  constexpr std::int64_t kRotary = 2'097'152;
  const std::vector<std::int64_t> forward = {
      kStream, kRotary,  // input and what FSDP casts for the block
      kStream, kQuery,       kKey,     kKey,      kQuery,    kKey,      kQuery,
      kStream, kStream,      -kStream,  // norm to the sum behind attention
      kStream, kRows,        kOneMore, kPadded,   -kOneMore, kInner,    kInner,
      kInner,  kPadded,      kOneMore, -kPadded,  kRows,     2 * kRows, 2 * kStream,
      kStream, -2 * kStream, -kRows,   -kOneMore, -kRows,    kStream,   -kStream};
  std::vector<std::int64_t> changes = large_changes(tape.take_events());
  std::vector<std::int64_t> traced = forward;
  const auto frees = std::ssize(traced) - 5;
  REQUIRE(changes.size() == traced.size());
  std::sort(changes.begin() + frees, changes.begin() + frees + 3);
  std::sort(traced.begin() + frees, traced.begin() + frees + 3);
  CHECK(changes == traced);
}

TEST_CASE("under full recompute a compiled mixture saves nothing but its input and the table") {
  Job job = qwen3_mixture(8);
  job.profile.compile = true;
  for (const std::int64_t ep : {1, 8}) {
    const TitanSizes sizes(job, sharded(8, ep), true);
    TitanTape tape(0);
    CompiledMixture layer_of(tape, sizes);
    LayerTensors layer;
    layer_of.forward(layer, LayerPass::kSavesNothing);
    std::unordered_map<std::int64_t, std::int64_t> held;
    for (const AllocationEvent& event : tape.take_events()) { held[event.id] = event.bytes; }
    std::int64_t left = 0;
    for (const auto& [id, bytes] : held) { left += bytes; }
    CHECK(left == sizes.sequence);  // the output
  }
}

TEST_CASE("FSDP's cast of the rotary table stays with every checkpointed block") {
  // 2 * 4096 * 128 numbers of 2 bytes in each of 4 layers; without recompute they are what
  // attention saves of it anyway.
  constexpr std::int64_t kCast = 2 * 4096 * 128 * 2;
  for (const bool compile : {false, true}) {
    Job job = qwen3_mixture(8);
    job.profile.compile = compile;
    Plan plan = sharded(8, 1);
    plan.recompute.granularity = RecomputeGranularity::kFull;
    const PlanPieces whole = plan_pieces(job, plan);
    std::int64_t held = 0;
    std::int64_t most = 0;
    std::unordered_map<std::int64_t, bool> is_cast;
    for (const AllocationEvent& event : timeline(job, plan, whole.stages.at(0))) {
      if (event.bytes == kCast && event.stream == AllocationStream::kCompute) {
        is_cast[event.id] = true;
        most = std::max(most, ++held);
      } else if (event.bytes == 0 && is_cast[event.id]) {
        is_cast[event.id] = false;
        --held;
      }
    }
    CHECK(most >= 4);
  }
}

TEST_CASE("experts divide over ep, and FSDP shares the rest of them") {
  for (const std::int64_t ep : {1, 2, 4, 8}) {
    const StageMemory stage = estimate_memory(mixture(8), sharded(8, ep)).stages.at(0);
    const auto row = std::ranges::find(stage.rows, std::string_view("parameters"), &Row::name);
    REQUIRE(row != stage.rows.end());
    const Job job = mixture(8);
    CHECK(row->bytes >= 4 * count_parameters(job.model) / 8);
    CHECK(row->bytes <= 4 * count_parameters(job.model) / 8 + 64 * kAllocatorRounding);
  }
}

// 32 experts over 24 ranks are two on each of 16; the first rank holds two as well as a rank of 16.
TEST_CASE("FSDP pads the experts of a rank to a multiple of those that share them") {
  const auto experts = [](std::int64_t dp, std::int64_t ep) {
    const StageMemory stage = estimate_memory(mixture(dp), sharded(dp, ep)).stages.at(0);
    const auto row = std::ranges::find(stage.rows, std::string_view("parameters"), &Row::name);
    REQUIRE(row != stage.rows.end());
    const Job job = mixture(dp);
    return row->bytes / 4 - (count_parameters(job.model) - 4 * 3 * kWeight) / dp;
  };
  constexpr std::int64_t kExpert = kWeight / 32;
  constexpr std::int64_t kRounding = 64 * kAllocatorRounding / 4;
  CHECK(std::abs(experts(24, 1) - 4 * 3 * 2 * kExpert) <= kRounding);
  CHECK(std::abs(experts(16, 1) - 4 * 3 * 2 * kExpert) <= kRounding);
  CHECK(std::abs(experts(24, 2) - 4 * 3 * 2 * kExpert) <= kRounding);  // 16 over 12
}

TEST_CASE("experts that are a group of their own are gathered and reduced by themselves") {
  const Job job = mixture(8);
  const Plan plan = sharded(8, 4);
  const PlanPieces whole = plan_pieces(job, plan);
  const std::vector<AllocationEvent> events = timeline(job, plan, whole.stages.at(0));
  const auto count = [&events](std::int64_t bytes, AllocationStream stream) {
    return std::ranges::count_if(events, [&](const AllocationEvent& event) {
      return event.bytes == bytes && event.stream == stream;
    });
  };
  constexpr std::int64_t kOfRank = 3 * kWeight / 4;
  // Three steps of four layers, gathered for forward and for backward.
  CHECK(count(2 * kOfRank, AllocationStream::kGather) == 3 * 4 * 2);
  CHECK(count(4 * kOfRank, AllocationStream::kCompute) == 3 * 4);
  CHECK(count(4 * kOfRank / 2, AllocationStream::kReduce) == 3 * 4);
}

void check_mixture(const Job& of, bool compile) {
  for (const std::int64_t vocab : {4096, 32768}) {
    for (const std::int64_t ep : {1, 2, 8}) {
      Job job = of;
      job.model.vocab = vocab;
      job.profile.compile = compile;
      CAPTURE(ep);
      check_peaks_alike(job, sharded(8, ep));
    }
  }
}

TEST_CASE("a mixture's rows and its timeline peak alike") {
  check_mixture(mixture(8), false);
  check_mixture(qwen3_mixture(8), false);
  check_mixture(qwen3_mixture(8), true);
  Job few_tokens = mixture(8);  // whose peak is where experts' gradients are reduced
  few_tokens.sequence_length = 512;
  check_mixture(few_tokens, false);
}

// One choice a token, and an expert that all tokens pass; in every layer, or in every second one.
Job llama4_mixture(std::int64_t gpus, std::int64_t step = 1) {
  Job job = llama_job("torchtitan", {.hidden = 2048, .ffn = 8192, .heads = 16, .layers = 4}, gpus,
                      4096, gpus);
  job.model.family = "llama4_text";
  job.model.moe = {.num_experts = 8, .topk = 1, .expert_ffn = 4096, .shared_ffn = 4096};
  for (std::int64_t i = step - 1; i < job.model.num_layers(); i += step) {
    job.model.layers[static_cast<std::size_t>(i)].is_moe = true;
  }
  return job;
}

TEST_CASE("the rows and the timeline of Llama 4's mixtures peak alike") {
  check_mixture(llama4_mixture(8), false);
  Plan plan = sharded(4, 1);
  plan.tp = 2;
  plan.etp = 2;
  plan.sequence_parallel = true;
  check_peaks_alike(llama4_mixture(8), plan);
}

TEST_CASE("Llama 4 keeps its experts' rows in fp32 for the gradient of their scores") {
  const Job job = llama4_mixture(8);
  const TitanSizes sizes(job, sharded(8, 1), true);
  CHECK(sizes.moe.wide_rows == std::int64_t{4} * 2048 * 4096);
  TitanTape tape(0);
  EagerLayer eager(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  eager.forward(layer, LayerPass::kSaves);
  CHECK(layer.moe.wide.bytes == sizes.moe.wide_rows);
  CHECK(layer.moe.scored.bytes == 0);  // and no weighted sum
}

TEST_CASE("what of Llama 4 is not described is refused by name") {
  const auto rule = [](const Job& job, const Plan& plan) -> std::string_view {
    const ValidityRule* broken = first_broken_rule(job, plan);
    return broken == nullptr ? "" : broken->name;
  };
  Job job = llama4_mixture(8);
  CHECK(rule(job, sharded(8, 8)) == "");
  CHECK(rule(llama4_mixture(8, 2), sharded(8, 8)) == "");
  Plan pipelined = sharded(4, 1);
  pipelined.pp = 2;
  pipelined.schedule = Schedule::kGpipe;
  CHECK(rule(job, pipelined) == "unsupported: experts in a pipeline");
  CHECK(rule(llama4_mixture(1), sharded(1, 1)) == "unsupported: Llama 4 on one GPU");
  for (LayerSpec& layer : job.model.layers) { layer.attention_window = 4096; }
  CHECK(rule(job, sharded(8, 8)) == "");
  for (LayerSpec& layer : job.model.layers) { layer.attention_window = 2048; }
  CHECK(rule(job, sharded(8, 8)) == "unsupported: model");
}

TEST_CASE("what torchtitan's mixtures do not do is refused by name") {
  const auto rule = [](const Job& job, const Plan& plan) -> std::string_view {
    const ValidityRule* broken = first_broken_rule(job, plan);
    return broken == nullptr ? "" : broken->name;
  };
  Job job = mixture(8);
  CHECK(rule(job, sharded(8, 8)) == "");
  CHECK(rule(job, sharded(8, 3)) == "experts_divisible_by_ep");
  CHECK(rule(job, sharded(8, 16)) == "ep_etp_divide_shards");
  Plan plan = sharded(4, 1);
  plan.tp = 2;
  plan.sequence_parallel = true;
  CHECK(rule(job, plan) == "etp_is_1_or_tp");
  plan.etp = 2;
  CHECK(rule(job, plan) == "");
  job.model.moe.shared_ffn = 768;
  CHECK(rule(job, sharded(8, 8)) == "unsupported: experts");
  job = mixture(8);
  job.profile.compile = true;
  CHECK(rule(job, sharded(8, 8)) == "unsupported: compiled experts");
  job.model.qk_norm = true;
  CHECK(rule(job, sharded(8, 8)) == "");
  job = mixture(64);
  CHECK(rule(job, sharded(64, 1)) == "");
  CHECK(rule(job, sharded(64, 8)) == "");
  job.model.moe.expert_ffn = 764;  // over 8 shards
  CHECK(rule(job, sharded(64, 8)) == "unsupported: more shards than experts");
}

}  // namespace
}  // namespace shardplan::torchtitan
