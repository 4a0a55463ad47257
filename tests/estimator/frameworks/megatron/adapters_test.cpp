// Adapters that Megatron-SWIFT puts on Megatron-core's layers, counted by hand from the sources
// that the files under test name: hidden size 1024, 8 query and 2 key heads of 128, FFN 2816, two
// layers, a vocabulary of 32,000, one sequence of 1024 tokens, adapters of rank 16.
#include "estimator/frameworks/megatron/adapters/adapters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/case_tuning.h"
#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/plan/parameters.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kFfn = 2816;
constexpr std::int64_t kPacked = (8 + 2 * 2) * 128;
constexpr std::int64_t kRank = 16;
constexpr std::int64_t kExpertFfn = 512;

Job adapter_job(const char* cluster) {
  const Library library;
  Job job;
  job.model.name = "small";
  job.model.hidden = kHidden;
  job.model.ffn = kFfn;
  job.model.vocab = 32000;
  job.model.num_heads = 8;
  job.model.num_kv_heads = 2;
  job.model.head_dim = 128;
  job.model.layers.resize(2);
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 8;
  job.adapters = {.rank = kRank, .targets = all_targets().on, .dtype = DType::kBf16};
  return job;
}

Job mixture_job(const char* cluster) {
  Job job = adapter_job(cluster);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = kExpertFfn};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

std::int64_t kept_bytes(const Job& job, const Plan& plan, BlockKind kind) {
  return block_set(job, plan)[static_cast<std::size_t>(kind)].summary.kept_bytes;
}
std::int64_t kept_bytes(const Job& job, const Plan& plan = {}) {
  return kept_bytes(job, plan, BlockKind::kDenseLayer);
}

std::int64_t state_bytes(const Job& job, const Plan& plan, std::string_view name) {
  const PlanPieces whole = plan_pieces(job, plan);
  std::int64_t bytes = 0;
  for (const StateRow& row : whole.stages.front().state.rows) {
    bytes += row.name == name ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t allocated_bytes(const Job& job, const Plan& plan) {
  return estimate_memory(job, plan).stages.front().allocated_bytes;
}

// Both norms' inputs, outputs and statistics, packed queries, keys and values, attention's output
// and log-sum-exp, fc1's output.
constexpr std::int64_t kFrozenBytes =
    2 * (2 * kHidden + 2 * kHidden + 4) + 2 * kPacked + 2 * kHidden + 4 * 8 + 2 * 2 * kFfn;

TEST_CASE("adapters without dropout keep what the layers keep, and A's outputs") {
  const Job job = adapter_job("1x1-h100");
  Job all = job;
  all.adapters = {};
  CHECK(kept_bytes(all) == kTokens * (kFrozenBytes + 2 * kFfn));
  CHECK(kept_bytes(job) == kTokens * (kFrozenBytes + 2 * kFfn + 4 * 2 * kRank));
}

// The activation's output is saved by neither; norms' outputs are returned and kept.
TEST_CASE("dropout keeps what it left and a mask of a byte for every adapter's input") {
  Job job = adapter_job("1x1-h100");
  job.adapters.dropout = 0.05;
  constexpr std::int64_t kInputs = kHidden + kHidden + kHidden + kFfn;
  CHECK(kept_bytes(job) == kTokens * (kFrozenBytes + 4 * 2 * kRank + 3 * kInputs));
}

TEST_CASE("frozen layers without adapters keep no inputs of products") {
  Job job = adapter_job("1x1-h100");
  job.adapters.targets = {};
  job.adapters.targets[static_cast<std::size_t>(LinearLayer::kOutput)] = true;
  CHECK(kept_bytes(job) == kTokens * (kFrozenBytes - 2 * 2 * kHidden + 2 * kRank));
}

TEST_CASE("under tensor parallelism column-parallel layers drop their part of the sequence") {
  Job job = adapter_job("1x2-h100");
  const Plan plan = {.tp = 2, .sequence_parallel = true};
  constexpr std::int64_t kOwn = kTokens / 2;
  constexpr std::int64_t kFrozen =
      kOwn * 2 * (2 * kHidden + 2 * kHidden + 4) + kTokens * (kPacked + kHidden + 4 * 4 + 2 * kFfn);
  CHECK(kept_bytes(job, plan) == kFrozen + kTokens * kFfn + kOwn * 4 * 2 * kRank);
  job.adapters.dropout = 0.05;
  const std::int64_t dropped = 3 * (kOwn * 2 * kHidden + kTokens * (kHidden + kFfn) / 2);
  CHECK(kept_bytes(job, plan) == kFrozen + kOwn * 4 * 2 * kRank + dropped);
}

// Router: two rows of scores in fp32, a mask, indices and a map of rows; it keeps the norm's
// output.
TEST_CASE("adapters of experts keep an input and A's output for every routed row") {
  Job job = mixture_job("1x2-h100");
  const Plan plan = {.ep = 2};
  const std::int64_t none = [&] {
    Job frozen = job;
    frozen.adapters.targets = {};
    frozen.adapters.targets[static_cast<std::size_t>(LinearLayer::kOutput)] = true;
    return kept_bytes(frozen, plan, BlockKind::kMoeLayer);
  }();
  Job experts = job;
  experts.adapters.targets[static_cast<std::size_t>(LinearLayer::kQuery)] = false;
  experts.adapters.targets[static_cast<std::size_t>(LinearLayer::kKey)] = false;
  experts.adapters.targets[static_cast<std::size_t>(LinearLayer::kValue)] = false;
  constexpr std::int64_t kRows = 2 * kTokens;
  CHECK(kept_bytes(experts, plan, BlockKind::kMoeLayer) - none ==
        kRows * (2 * kHidden + 2 * kExpertFfn + 2 * 2 * kRank));
  experts.adapters.dropout = 0.05;
  CHECK(kept_bytes(experts, plan, BlockKind::kMoeLayer) - none ==
        kRows * (3 * kHidden + 3 * kExpertFfn + 2 * 2 * kRank) + kTokens * 3 * kHidden);
}

constexpr std::int64_t kLayerElements =
    kRank * (kHidden + kPacked + kHidden + kHidden + kHidden + 2 * kFfn + kFfn + kHidden);

TEST_CASE("adapters alone have gradients and an optimizer, the model lies beside them in bf16") {
  const Job job = adapter_job("1x1-h100");
  const Plan plan = {.zero = 1};
  constexpr std::int64_t kTrained = 2 * kLayerElements;
  CHECK(state_bytes(job, plan, "parameters.frozen") == 2 * count_parameters(job.model));
  CHECK(state_bytes(job, plan, "parameters.dense") == 2 * kTrained);
  CHECK(state_bytes(job, plan, "gradients.dense") == 4 * kTrained);
  CHECK(state_bytes(job, plan, "optimizer.dense.master") == 4 * kTrained);
  CHECK(state_bytes(job, plan, "optimizer.dense.exp_avg") == 4 * kTrained);
  CHECK(state_bytes(job, plan, "optimizer.dense.exp_avg_sq") == 4 * kTrained);
  CHECK(state_bytes(job, plan, "parameters.dense.padding") == 0);
}

// A of column-parallel layers and B of row-parallel ones are whole on either rank.
TEST_CASE("tensor parallelism divides one of A and B") {
  const Job job = adapter_job("1x2-h100");
  const Plan plan = {.tp = 2, .zero = 1, .sequence_parallel = true};
  constexpr std::int64_t kDivided =
      kRank * (kHidden + kPacked / 2 + kHidden / 2 + kHidden + kHidden + kFfn + kFfn / 2 + kHidden);
  CHECK(state_bytes(job, plan, "parameters.dense") == 2 * 2 * kDivided);
}

TEST_CASE("every expert of a rank has adapters of its own, in the experts' group") {
  const Job job = mixture_job("1x2-h100");
  const Plan plan = {.ep = 2, .zero = 1};
  constexpr std::int64_t kExpert = kRank * (kHidden + 2 * kExpertFfn + kExpertFfn + kHidden);
  constexpr std::int64_t kAttention = kRank * (kHidden + kPacked + kHidden + kHidden);
  CHECK(state_bytes(job, plan, "parameters.expert") == 2 * 2 * 4 * kExpert);
  CHECK(state_bytes(job, plan, "parameters.dense") == 2 * 2 * kAttention);
  CHECK(state_bytes(job, plan, "optimizer.dense.exp_avg") == 4 * 2 * kAttention / 2);
}

TEST_CASE("trained copies of the tables are beside the frozen ones and have gradients") {
  Job job = adapter_job("1x1-h100");
  const Plan plan = {.zero = 1};
  const std::int64_t without = state_bytes(job, plan, "parameters.dense");
  const std::int64_t frozen = state_bytes(job, plan, "parameters.frozen");
  job.adapters.trains_table = true;
  job.adapters.trains_head = true;
  CHECK(state_bytes(job, plan, "parameters.dense") - without == 2 * 2 * 32000 * kHidden);
  CHECK(state_bytes(job, plan, "parameters.frozen") == frozen);
  Job head_alone = job;
  head_alone.adapters.trains_table = false;
  const std::int64_t head = kept_bytes(head_alone, plan, BlockKind::kHead);
  head_alone.adapters.trains_head = false;
  CHECK(head - kept_bytes(head_alone, plan, BlockKind::kHead) == kTokens * 2 * kHidden);
}

// A delta net of 4 key heads and 8 value heads of 128 in the first layer, gated attention in the
// second: what makes queries and gate is twice as wide.
Job delta_job(const char* cluster) {
  Job job = adapter_job(cluster);
  job.model.attention_gate = AttentionGate::kPerElement;
  job.model.delta = {.key_heads = 4,
                     .value_heads = 8,
                     .key_head_dim = 128,
                     .value_head_dim = 128,
                     .convolution = 4};
  job.model.layers.front().mixer = MixerKind::kGatedDelta;
  return job;
}

constexpr std::int64_t kKeys = 4 * 128;
constexpr std::int64_t kValues = 8 * 128;
constexpr std::int64_t kMade = 2 * kKeys + 2 * kValues + 2 * 8;
constexpr std::int64_t kFfnAdapters = kRank * (kHidden + 2 * kFfn + kFfn + kHidden);
constexpr std::int64_t kGated = (2 * 8 + 2 * 2) * 128;

TEST_CASE("adapters stand on a delta net's input and output and on queries with their gate") {
  const Plan plan = {.zero = 1};
  constexpr std::int64_t kDelta = kRank * (kHidden + kMade + kValues + kHidden);
  constexpr std::int64_t kAttention = kRank * (kHidden + kGated + kHidden + kHidden);
  CHECK(state_bytes(delta_job("1x1-h100"), plan, "parameters.dense") ==
        2 * (kDelta + kAttention + 2 * kFfnAdapters));
  const Plan halves = {.tp = 2, .zero = 1, .sequence_parallel = true};
  constexpr std::int64_t kDivided = kRank * (kHidden + kMade / 2 + kValues / 2 + kHidden) +
                                    kRank * (kHidden + kGated / 2 + kHidden / 2 + kHidden) +
                                    2 * kRank * (kHidden + kFfn + kFfn / 2 + kHidden);
  CHECK(state_bytes(delta_job("1x2-h100"), halves, "parameters.dense") == 2 * kDivided);
}

// Frozen it keeps neither the normed input nor the gated output, nor what softplus left, which the
// decay's gradient alone reads.
TEST_CASE("a frozen delta net keeps what its rule needs, adapters the inputs of their layers") {
  const Job job = delta_job("1x1-h100");
  Job all = job;
  all.adapters = {};
  Job ffn = job;
  ffn.adapters.targets[static_cast<std::size_t>(LinearLayer::kMixerInput)] = false;
  ffn.adapters.targets[static_cast<std::size_t>(LinearLayer::kMixerOutput)] = false;
  constexpr std::int64_t kInputs = 2 * kHidden + 2 * kValues;
  CHECK(kept_bytes(job) - kept_bytes(ffn) == kTokens * (kInputs + 2 * 2 * kRank));
  CHECK(kept_bytes(all) == kept_bytes(job) - kTokens * (4 * 2 * kRank - 4 * 8));
}

// in_proj_qkvz makes queries, keys, values and gates, in_proj_ba two numbers a value head; each has
// an A and a norm of its own.
TEST_CASE("adapters stand on both products in front of a delta net") {
  Job job = delta_job("1x1-h100");
  const std::int64_t one = state_bytes(job, {.zero = 1}, "parameters.dense");
  const std::int64_t kept = kept_bytes(job);
  job.profile.decoupled_in_proj = true;
  CHECK(state_bytes(job, {.zero = 1}, "parameters.dense") - one == 2 * kRank * kHidden);
  CHECK(kept_bytes(job) - kept == kTokens * (2 * kHidden + 4 + 2 * kRank));
}

// Megatron-SWIFT's delta net gathers the sequence first: the norm keeps all of it, with its roots
// and its output, and adapters work on all tokens.
TEST_CASE("beside sequence parallelism a delta net with adapters keeps the whole sequence") {
  const Job job = delta_job("1x2-h100");
  const Plan plan = {.tp = 2, .sequence_parallel = true};
  Job all = job;
  all.adapters = {};
  constexpr std::int64_t kOwn = kTokens / 2;
  constexpr std::int64_t kFront =
      kTokens * (2 * kHidden + 2 * kHidden + 4) - kOwn * (2 * kHidden + 2 * kHidden + 4);
  constexpr std::int64_t kLowRanks = 2 * kRank * (2 * kTokens + 2 * kOwn);
  CHECK(kept_bytes(job, plan) - kept_bytes(all, plan) == kFront + kLowRanks - kTokens * 4 * 8 / 2);
  REQUIRE(!why_invalid(job, plan));
  CHECK(estimate_step_time(job, plan).total_s < estimate_step_time(all, plan).total_s * 1.2);
}

// SharedExpertMLP gathers before fc1; A and B gather nothing.
TEST_CASE("adapters of shared experts beside their exchange work on all tokens") {
  Job job = mixture_job("1x2-h100");
  job.model.moe.shared_ffn = kExpertFfn;
  const Plan plan = {.tp = 2, .ep = 2, .sequence_parallel = true};
  const std::int64_t in_turn = kept_bytes(job, plan, BlockKind::kMoeLayer);
  job.profile.moe_shared_expert_overlap = true;
  REQUIRE(!why_invalid(job, plan));
  constexpr std::int64_t kOwn = kTokens / 2;
  CHECK(kept_bytes(job, plan, BlockKind::kMoeLayer) - in_turn ==
        kTokens * 2 * kHidden + (kTokens - kOwn) * 2 * 2 * kRank);
  job.adapters.dropout = 0.05;
  const std::int64_t beside = kept_bytes(job, plan, BlockKind::kMoeLayer);
  job.profile.moe_shared_expert_overlap = false;
  CHECK(beside - kept_bytes(job, plan, BlockKind::kMoeLayer) ==
        (kTokens - kOwn) * (3 * kHidden + 2 * 2 * kRank));
}

TEST_CASE("all linear layers are those of a prediction module's projection, too") {
  Job job = adapter_job("1x1-h100");
  job.model.num_mtp_layers = 1;
  const Plan plan = {.zero = 1};
  const std::int64_t by_name = state_bytes(job, plan, "parameters.dense");
  const std::int64_t kept = kept_bytes(job, plan, BlockKind::kMtp);
  job.adapters.expert_targets = ExpertTargets::kAllLinear;
  CHECK(state_bytes(job, plan, "parameters.dense") - by_name ==
        2 * kRank * (2 * kHidden + kHidden));
  CHECK(kept_bytes(job, plan, BlockKind::kMtp) - kept == kTokens * 2 * (2 * kHidden + kRank));
}

// Latent attention of 8 heads with a query rank of 256, a rank of keys and values of 128, and heads
// of 64 without, 32 with positions, and 64 of values.
Job latent_job(const char* cluster) {
  Job job = adapter_job(cluster);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 256,
                   .kv_lora_rank = 128,
                   .qk_nope_head_dim = 64,
                   .qk_rope_head_dim = 32,
                   .v_head_dim = 64};
  return job;
}

TEST_CASE("latent attention has adapters on its four projections and the one behind") {
  const auto elements = [](std::int64_t tp) {
    return kRank * ((kHidden + 256) + (256 + 8 * 96 / tp) + (kHidden + 128 + 32) +
                    (128 + 8 * 128 / tp) + (8 * 64 / tp + kHidden)) +
           kRank * ((kHidden + 2 * kFfn / tp) + (kFfn / tp + kHidden));
  };
  CHECK(state_bytes(latent_job("1x1-h100"), {.zero = 1}, "parameters.dense") ==
        2 * 2 * elements(1));
  const Plan halves = {.tp = 2, .zero = 1, .sequence_parallel = true};
  REQUIRE(!why_invalid(latent_job("1x2-h100"), halves));
  CHECK(state_bytes(latent_job("1x2-h100"), halves, "parameters.dense") == 2 * 2 * elements(2));
  Job plain = latent_job("1x1-h100");
  plain.model.mla.q_lora_rank = 0;
  CHECK(state_bytes(plain, {.zero = 1}, "parameters.dense") ==
        2 * 2 * (elements(1) - kRank * (kHidden + 256) + kRank * (kHidden - 256)));
}

// Frozen down-projections save no input, up-projections drop their norms' outputs.
TEST_CASE("frozen latent attention keeps no inputs of products but for adapters") {
  const Job job = latent_job("1x1-h100");
  Job all = job;
  all.adapters = {};
  CHECK(kept_bytes(job) == kept_bytes(all) + kTokens * 7 * 2 * kRank);
  Job ffn = job;
  for (const LinearLayer place :
       {LinearLayer::kQuery, LinearLayer::kKey, LinearLayer::kValue, LinearLayer::kOutput}) {
    ffn.adapters.targets[static_cast<std::size_t>(place)] = false;
  }
  CHECK(kept_bytes(ffn) ==
        kept_bytes(all) + kTokens * 2 * 2 * kRank - kTokens * 2 * (kHidden + 256 + 128));
  REQUIRE(!why_invalid(job, {}));
  CHECK(estimate_step_time(job, {}).total_s > 0);
}

TEST_CASE("memory and time grow with the rank, from those of the frozen model on") {
  Job job = adapter_job("1x2-h100");
  Job all = job;
  all.adapters = {};
  for (const Plan& plan :
       {Plan{.tp = 2, .zero = 1, .sequence_parallel = true},
        Plan{.zero = 1, .recompute = {.granularity = RecomputeGranularity::kFull}}}) {
    std::int64_t bytes = 0;
    double seconds = 0;
    for (const std::int64_t rank : {1, 8, 16, 64, 256}) {
      job.adapters.rank = rank;
      REQUIRE(!why_invalid(job, plan));
      CHECK(allocated_bytes(job, plan) > bytes);
      CHECK(estimate_step_time(job, plan).total_s >= seconds);
      bytes = allocated_bytes(job, plan);
      seconds = estimate_step_time(job, plan).total_s;
    }
    CHECK(bytes < allocated_bytes(all, plan));
    job.adapters.rank = 1;
    CHECK(estimate_step_time(job, plan).total_s < estimate_step_time(all, plan).total_s);
  }
}

TEST_CASE("what Megatron-SWIFT's adapters refuse is refused by its name") {
  const auto refused = [](const Job& job, const Plan& plan) -> std::string {
    const std::optional<InvalidReason> why = why_invalid(job, plan);
    return why ? std::string(why->rule) : "";
  };
  const Job job = adapter_job("1x2-h100");
  Job dora = job;
  dora.adapters.decomposes_weights = true;
  CHECK(refused(dora, {}) == "adapters_are_plain");
  Job part = job;
  part.adapters.targets[static_cast<std::size_t>(LinearLayer::kKey)] = false;
  CHECK(refused(part, {}) == "adapters_on_whole_modules");
  CHECK(refused(mixture_job("1x2-h100"), {.tp = 2, .etp = 2, .sequence_parallel = true}) ==
        "adapters_need_etp_1");
  Job wide = job;
  wide.adapters.dtype = DType::kFp32;
  CHECK(refused(wide, {}) == "unsupported: adapters.dtype");
  CHECK(refused(job, {.zero = 3}) == "adapters_need_a_plain_optimizer");
  CHECK(refused(job, {.precision = Precision::kFp8}) == "adapters_need_bf16");
  CHECK(refused(job, {.recompute = {.granularity = RecomputeGranularity::kSelective,
                                    .modules = {.mlp = true}}}) ==
        "adapters_replay_core_attention_or_layers");
  Job ends = job;
  ends.model.tied_embeddings = true;
  ends.adapters.trains_table = true;
  CHECK(refused(ends, {}) == "unsupported: trained");
}

}  // namespace
}  // namespace shardplan::megatron
