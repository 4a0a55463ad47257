// Layers of one part each under Megatron-LM's MambaModel, counted by hand from the sources that the
// files under test name: hidden size 1024; Mamba-2 of 32 heads of 64, 8 groups and 128 states;
// attention of 8 heads and 2 of keys of 128; an FFN 4096 wide without a gate; sequences of 1024.
#include "estimator/frameworks/megatron/mixers/hybrid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/ledger/layer_blocks.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/parameters.h"
#include "estimator/price/price.h"
#include "tests/estimator/broken_plans.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kFfn = 4096;
constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kInner = kHeads * 64;
constexpr std::int64_t kGroups = 8;
constexpr std::int64_t kMatrix = kGroups * 128;
constexpr std::int64_t kPacked = 2 * kInner + 2 * kMatrix + kHeads;

// Of the first layer of each letter: Mamba-2, attention, an FFN.
constexpr BlockKind kMamba = BlockKind::kDenseLayer;
constexpr BlockKind kAttention = BlockKind::kOtherLayer;
constexpr BlockKind kFeedForward = BlockKind::kFurtherLayer;

LayerSpec layer_of_letter(char letter) {
  LayerSpec layer;
  layer.mixer = letter == 'M'   ? MixerKind::kMamba2
                : letter == '*' ? MixerKind::kAttention
                                : MixerKind::kNone;
  layer.has_ffn = letter == '-' || letter == 'E';
  layer.is_moe = letter == 'E';
  layer.has_rotary = false;
  return layer;
}

Job hybrid_job(std::string_view letters, const char* cluster = "1x1-h100") {
  const Library library;
  Job job;
  job.model.name = "small";
  job.model.family = "mamba";
  job.model.hidden = kHidden;
  job.model.ffn = kFfn;
  job.model.gated_ffn = false;
  job.model.vocab = 32000;
  job.model.num_heads = 8;
  job.model.num_kv_heads = 2;
  job.model.head_dim = 128;
  job.model.norms_per_layer = 1;
  job.model.mamba = {.num_heads = kHeads,
                     .head_dim = 64,
                     .inner = kInner,
                     .state = 128,
                     .groups = kGroups,
                     .convolution = 4,
                     .chunk = 128};
  for (const char letter : letters) { job.model.layers.push_back(layer_of_letter(letter)); }
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 8;
  return job;
}

const BlockMemory& block_of(const BlockSet& blocks, BlockKind kind) {
  return blocks[static_cast<std::size_t>(kind)];
}
std::int64_t kept_bytes(const Job& job, BlockKind kind, const Plan& plan = {}) {
  return block_of(block_set(job, plan), kind).summary.kept_bytes;
}
std::int64_t row_bytes(const Job& job, std::string_view name, const Plan& plan = {},
                       BlockKind kind = kMamba) {
  const BlockSet blocks = block_set(job, plan);
  const std::vector<BlockRow>& rows = block_of(blocks, kind).rows;
  const auto row = std::ranges::find(rows, name, &BlockRow::name);
  return row == rows.end() ? 0 : row->bytes;
}

TEST_CASE("every letter of a pattern is a kind of block of its own") {
  const Job job = hybrid_job("M*-E");
  const LayerBlocks blocks(job);
  CHECK(blocks.kind_of(0) == kMamba);
  CHECK(blocks.kind_of(1) == kAttention);
  CHECK(blocks.kind_of(2) == kFeedForward);
  CHECK(blocks.kind_of(3) == BlockKind::kMoeLayer);
}

// The norm's input and output with its root; the packed product; the scan's output before its gate,
// the norm's input and output, with a root a group.
TEST_CASE("Mamba-2 keeps its packed product and its output three times") {
  const Job job = hybrid_job("M*-");
  constexpr std::int64_t kBytes =
      2 * kHidden + 2 * kHidden + 4 + 2 * kPacked + 3 * 2 * kInner + 4 * kGroups;
  CHECK(kept_bytes(job, kMamba) == kTokens * kBytes);
  CHECK(kept_bytes(job, kMamba, {.micro_batch = 2}) == 2 * kTokens * kBytes);
}

// No embedding turns them: queries, keys and values are copied out of the packed product, whose
// groups of queries no layout of cuDNN has.
TEST_CASE("attention alone and an FFN alone keep their own") {
  const Job job = hybrid_job("M*-");
  constexpr std::int64_t kQkv = (8 + 2 * 2) * 128;
  constexpr std::int64_t kNormed = 2 * kHidden + 2 * kHidden + 4;
  CHECK(kept_bytes(job, kAttention) == kTokens * (kNormed + 2 * kQkv + 2 * 8 * 128 + 4 * 8));
  CHECK(kept_bytes(job, kFeedForward) == kTokens * (kNormed + 2 * kFfn + 2 * kFfn));
}

TEST_CASE("queries are turned where an attention layer knows positions") {
  Job job = hybrid_job("M*-");
  CHECK(row_bytes(job, "attention.unrotated_query", {}, kAttention) == 0);
  job.model.layers[1].has_rotary = true;
  CHECK(row_bytes(job, "attention.unrotated_query", {}, kAttention) == 2 * 8 * 128 * kTokens);
}

// As many heads of keys as of queries: cuDNN takes parts of the packed product.
TEST_CASE("without positions queries of their own keys stay in the packed product") {
  Job job = hybrid_job("M*-");
  job.model.num_kv_heads = 8;
  CHECK(row_bytes(job, "attention.packed_qkv", {}, kAttention) == 0);
  job.model.num_kv_heads = 2;
  CHECK(row_bytes(job, "attention.packed_qkv", {}, kAttention) == 2 * (8 + 2 * 2) * 128 * kTokens);
}

TEST_CASE("one layer of attention and an FFN keeps what two of one part do") {
  const Job job = hybrid_job("M*-");
  Job whole = hybrid_job("*");
  whole.model.layers.front() = {.has_rotary = false};
  whole.model.norms_per_layer = 2;
  CHECK(kept_bytes(whole, kMamba) == kept_bytes(job, kAttention) + kept_bytes(job, kFeedForward));
}

TEST_CASE("tensor and sequence parallelism halve what every part keeps") {
  const Job job = hybrid_job("M*-", "1x2-h100");
  const Plan plan = {.tp = 2, .sequence_parallel = true};
  REQUIRE(!why_invalid(job, plan));
  for (const BlockKind kind : {kMamba, kAttention, kFeedForward}) {
    CHECK(2 * kept_bytes(job, kind, plan) == kept_bytes(job, kind));
  }
}

// A state of 128 numbers a channel for each 128 tokens: as many as the channels have values.
TEST_CASE("the scan holds states of chunks, backward their gradients in fp32 beside them") {
  const Job job = hybrid_job("M*-");
  CHECK(row_bytes(job, "mamba.fp32_states") == 4 * kInner * kTokens);
  CHECK(row_bytes(job, "mamba.fp32_state_gradients") == 2 * 4 * kInner * kTokens);
  CHECK(row_bytes(job, "mamba.pairs") == 4 * kGroups * 128 * kTokens);
  CHECK(row_bytes(job, "mamba.packed_sequence_first") == 0);
  CHECK(row_bytes(job, "mamba.packed_sequence_first", {.micro_batch = 2}) ==
        2 * 2 * kPacked * kTokens);
}

// MambaMixer: in_proj with its norm, a convolution of 4 with a bias, A, D and a bias of steps, the
// norm behind and out_proj; all but the first norm divided.
TEST_CASE("a rank holds its part of Mamba-2's parameters") {
  constexpr std::int64_t kDivided =
      kHidden * kPacked + 5 * (kInner + 2 * kMatrix) + 3 * kHeads + kInner + kInner * kHidden;
  const auto elements = [](const Job& job, const Plan& plan) {
    return block_parameters(job, plan, kMamba).dense;
  };
  CHECK(elements(hybrid_job("M"), {}) == kHidden + kDivided);
  CHECK(elements(hybrid_job("M", "1x2-h100"), {.tp = 2, .sequence_parallel = true}) ==
        kHidden + kDivided / 2);
  CHECK(block_parameters(hybrid_job("M*-"), {}, kFeedForward).dense ==
        kHidden + 2 * kHidden * kFfn);
  CHECK(block_parameters(hybrid_job("M*-"), {}, kAttention).dense ==
        kHidden + kHidden * (8 + 2 * 2) * 128 + kHidden * kHidden);
}

// Published: 31,577,937,344 with a bias of the router's for each of 128 experts in 23 layers.
TEST_CASE("stages of Nemotron 3 Nano hold the parameters of its checkpoint") {
  const Library library;
  Job job = hybrid_job("M");
  job.model = library.model("nemotron-3-nano-30b-a3b").model;
  job.cluster = library.cluster("1x4-h200");
  const Plan plan = {.pp = 4, .schedule = Schedule::k1F1B};
  REQUIRE(is_hybrid(job));
  REQUIRE(!why_invalid(job, plan));
  std::int64_t elements = 0;
  for (const StagePieces& stage : plan_pieces(job, plan).stages) {
    const StageTensors tensors = stage_tensors(job, plan, stage.layout, {});
    elements += tensors.dense + tensors.expert;
  }
  CHECK(elements == count_parameters(job.model));
  CHECK(elements == 31'577'937'344);
}

TEST_CASE("a Mamba-2 layer takes as long for a token of a long sequence as of a short one") {
  Job job = hybrid_job("M*-");
  const auto seconds = [&](std::int64_t length) {
    job.sequence_length = length;
    const BlockTime time = model_times(job, {}).layers.front().time;
    return (time.forward_s + time.backward_input_s) / static_cast<double>(length);
  };
  CHECK(seconds(65'536) == doctest::Approx(seconds(32'768)).epsilon(0.02));
}

TEST_CASE("adapters stand on the products of Mamba-2, of attention and of FFNs") {
  Job job = hybrid_job("M*-");
  const std::int64_t all = kept_bytes(job, kMamba);
  job.adapters = {.rank = 16, .dtype = DType::kBf16};
  job.adapters.targets.fill(true);
  REQUIRE(!why_invalid(job, {}));
  CHECK(kept_bytes(job, kMamba) == all + kTokens * 2 * 2 * 16);
  job.adapters.targets = {};
  job.adapters.targets[static_cast<std::size_t>(LinearLayer::kUp)] = true;
  job.adapters.targets[static_cast<std::size_t>(LinearLayer::kGate)] = true;
  CHECK(kept_bytes(job, kMamba) == all - kTokens * (2 * kHidden + 2 * kInner));
}

// One table asks for all plans, so that pieces of one serve another.
void check_prices(const Job& job, const std::vector<Plan>& plans) {
  PriceTable table = build_price_table(job);
  for (const Plan& plan : plans) {
    REQUIRE(!why_invalid(job, plan));
    const MemoryEstimate memory = estimate_memory(job, plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const Price priced = price(table, plan);
    CHECK(priced.allocated_bytes == largest->allocated_bytes);
    CHECK(priced.step_time_s == estimate_step_time(job, plan).total_s);
  }
}

TEST_CASE("prices of hybrids equal their estimates") {
  const Library library;
  Job job = hybrid_job("M");
  job.model = library.model("nemotron-3-nano-30b-a3b").model;
  job.cluster = library.cluster("1x8-h200");
  job.global_batch = 64;
  std::vector<Plan> plans;
  for (const std::int64_t tp : {1, 2, 4}) {
    for (const std::int64_t micro_batch : {1, 2}) {
      plans.push_back({.tp = tp, .ep = 2, .micro_batch = micro_batch, .sequence_parallel = tp > 1});
      plans.push_back({.tp = tp,
                       .ep = 2,
                       .pp = 2,
                       .zero = 1,
                       .micro_batch = micro_batch,
                       .sequence_parallel = tp > 1,
                       .recompute = {.granularity = RecomputeGranularity::kSelective,
                                     .modules = {.core_attn = true}},
                       .schedule = Schedule::k1F1B});
    }
  }
  check_prices(job, plans);
}

TEST_CASE("prices of adapters on delta nets equal their estimates, replayed and not") {
  const Library library;
  Job job = hybrid_job("M");
  job.model = library.model("qwen3-next-80b-a3b").model;
  job.model.num_mtp_layers = 0;
  job.cluster = library.cluster("1x8-h200");
  job.profile.moe_shared_expert_overlap = true;
  job.adapters = {.rank = 8, .dropout = 0.05, .dtype = DType::kBf16};
  job.adapters.targets.fill(true);
  std::vector<Plan> plans;
  const Recompute full = {.granularity = RecomputeGranularity::kFull};
  for (const Recompute& recompute : {Recompute{}, full, Recompute{}}) {
    for (const std::int64_t tp : {1, 2}) {
      plans.push_back(
          {.tp = tp, .ep = 4, .zero = 1, .sequence_parallel = tp > 1, .recompute = recompute});
    }
  }
  check_prices(job, plans);
}

// Half of the tokens before the exchange, all of them with half of the heads and groups behind it.
TEST_CASE("context parallelism halves what every part keeps while there are groups for its ranks") {
  const Job job = hybrid_job("M*-", "1x2-h100");
  const Plan plan = {.cp = 2, .cp_method = CpMethod::kAllGather};
  REQUIRE(!why_invalid(job, plan));
  for (const BlockKind kind : {kMamba, kFeedForward}) {
    CHECK(2 * kept_bytes(job, kind, plan) == kept_bytes(hybrid_job("M*-"), kind));
  }
  // Of 512 tokens the product; parts of it that were exchanged, twice; the scan's output in the
  // other order, and exchanged; backward all parts beside the gradient that they come from. Seen by
  // PyTorch's memory profiler of mamba_context_parallel.py on the CPU: P0 + 3P numbers a token
  // before the scan, 4I behind it, 2P + I backward.
  CHECK(row_bytes(job, "mamba.product", plan) == 512 * 2 * kPacked);
  CHECK(row_bytes(job, "mamba.exchanged_parts", plan) == 2 * 512 * 2 * kPacked);
  CHECK(row_bytes(job, "mamba.exchanged_output", plan) == 2 * 512 * 2 * kInner);
  CHECK(row_bytes(job, "mamba.exchanged_gradients", plan) == 512 * 2 * (kPacked + kInner));
  CHECK(2 * row_bytes(job, "mamba.fp32_states", plan) ==
        row_bytes(hybrid_job("M*-"), "mamba.fp32_states"));
  CHECK(row_bytes(hybrid_job("M*-"), "mamba.product") == 0);
}

// One group, which both ranks scan: the matrices of 1024 tokens on either, where a rank without
// context parallelism has them once.
TEST_CASE("ranks that share a group have copies of its matrices") {
  Job job = hybrid_job("M*-", "1x2-h100");
  job.model.mamba.groups = 1;
  const Plan plan = {.cp = 2, .cp_method = CpMethod::kAllGather};
  REQUIRE(!why_invalid(job, plan));
  const std::int64_t packed = row_bytes(job, "mamba.packed", plan);
  CHECK(packed == 512 * 2 * (2 * kInner + 2 * 2 * 128 + kHeads));
  CHECK(row_bytes(job, "mamba.product", plan) == 512 * 2 * (2 * kInner + 2 * 128 + kHeads));
  CHECK(row_bytes(job, "mamba.pairs", plan) == 4 * 8 * 128 * 128);  // of 8 chunks
}

// What the products save is a byte a number, what the scan saves is not.
TEST_CASE("in fp8 Mamba-2 keeps the inputs of its products in one byte") {
  const Job job = hybrid_job("M*-");
  const Plan plan = {.precision = Precision::kFp8};
  REQUIRE(!why_invalid(job, plan));
  constexpr std::int64_t kBytes =
      2 * kHidden + kHidden + 4 + 2 * kPacked + 2 * 2 * kInner + kInner + 4 * kGroups;
  CHECK(kept_bytes(job, kMamba, plan) == kTokens * kBytes);
  Job scaled = job;  // no projection but attention's is told to save what it was given
  scaled.profile.fp8_recipe = Fp8Recipe::kTensorwise;
  CHECK(kept_bytes(scaled, kMamba, plan) == kTokens * kBytes);
}

TEST_CASE("prices of hybrids over context-parallel ranks and in fp8 equal their estimates") {
  const Library library;
  Job job = hybrid_job("M");
  job.model = library.model("nemotron-h-56b").model;
  job.cluster = library.cluster("1x8-h200");
  job.sequence_length = 8192;
  std::vector<Plan> plans;
  for (const std::int64_t cp : {1, 2, 4}) {
    for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
      plans.push_back({.tp = 2,
                       .cp = cp,
                       .zero = 1,
                       .sequence_parallel = true,
                       .cp_method = CpMethod::kAllGather,
                       .precision = precision});
    }
  }
  check_prices(job, plans);
}

TEST_CASE("prices of delta nets with two products in front equal their estimates") {
  const Library library;
  Job job = hybrid_job("M");
  job.model = library.model("qwen3-next-80b-a3b").model;
  job.model.num_mtp_layers = 0;
  job.cluster = library.cluster("1x8-h200");
  job.profile.decoupled_in_proj = true;
  std::vector<Plan> plans;
  const Recompute full = {.granularity = RecomputeGranularity::kFull};
  for (const Recompute& recompute : {Recompute{}, full}) {
    for (const std::int64_t tp : {1, 2}) {
      for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
        plans.push_back({.tp = tp,
                         .ep = 4,
                         .zero = 1,
                         .sequence_parallel = tp > 1,
                         .recompute = recompute,
                         .precision = precision});
      }
    }
  }
  check_prices(job, plans);
}

TEST_CASE("what MambaModel refuses, and what is not described of it") {
  check_refused(
      hybrid_job("MM*-MM*-", "1x8-h200"),
      {{"mamba_heads_divisible_by_tp_cp",
        [](Job& spoiled, Plan& plan) {
          spoiled.model.mamba.groups = 3;
          spoiled.model.mamba.num_heads = 30;
          plan.cp = 2;
        },
        {"cp 2", "groups 3"}},
       {"hybrids_need_vpp_1",
        [](Job&, Plan& plan) {
          plan.pp = 2;
          plan.vpp = 2;
          plan.schedule = Schedule::kInterleaved1F1B;
        },
        {"vpp 2", "vpp 1"}},
       {"hybrids_replay_no_layers",
        [](Job&, Plan& plan) { plan.recompute.granularity = RecomputeGranularity::kFull; },
        {"recompute full", "selective"}},
       {"mamba_groups_divisible_by_tp",
        [](Job& spoiled, Plan& plan) {
          spoiled.model.mamba.groups = 1;
          plan.tp = 2;
          plan.sequence_parallel = true;
        },
        {"groups 1", "tp 2"}},
       {"fp8_mixer_widths_divisible",
        [](Job& spoiled, Plan& plan) {
          spoiled.model.mamba.num_heads = 31;
          plan.precision = Precision::kFp8;
        },
        {"layers of one part (mamba)", "16"}},
       {"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 3; }, {"zero 3", "0, 1"}},
       {"unsupported: model.layers",
        [](Job& spoiled, Plan&) { spoiled.model.mamba.gated_norm = false; },
        {"Mamba-2 (mamba)", "layers of one part"}},
       {"hybrids_need_exposed_communication",
        [](Job& spoiled, Plan&) { spoiled.profile.deferred_embedding_wgrads = 2; },
        {"deferred_embedding_wgrads", "0"}}},
      {});
}

}  // namespace
}  // namespace shardplan::megatron
