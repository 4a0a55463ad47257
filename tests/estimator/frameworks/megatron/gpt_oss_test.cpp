// What layers of gpt-oss-20b keep and cost under Megatron-LM, counted by hand: hidden size 2880, 64
// heads of 64 and 8 of keys, 32 experts of 2880, of which a token has 4; sequences of 4096.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/model_times.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/framework.h"
#include "estimator/time/host_time.h"
#include "tests/estimator/broken_plans.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kHidden = 2880;
constexpr std::int64_t kFfn = 2880;
constexpr std::int64_t kTopk = 4;
const Plan kEightRanks = {.ep = 8};

Job gpt_oss_job(const char* cluster = "1x8-h100") {
  const Library library;
  Job job;
  job.model = library.model("gpt-oss-20b").model;
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 8;
  return job;
}

const BlockMemory& layer_of(const BlockSet& blocks) {
  return blocks[static_cast<std::size_t>(BlockKind::kMoeLayer)];
}

std::int64_t kept_bytes(const Job& job, const Plan& plan = kEightRanks) {
  return layer_of(block_set(job, plan)).summary.kept_bytes;
}

std::int64_t row_bytes(const Job& job, std::string_view name, const Plan& plan = kEightRanks) {
  const BlockSet blocks = block_set(job, plan);
  const std::vector<BlockRow>& rows = layer_of(blocks).rows;
  const auto row = std::ranges::find(rows, name, &BlockRow::name);
  return row == rows.end() ? 0 : row->bytes;
}

// Attention: its input, the norm's root and output, q, k and v in one layout, a sum a head, the
// output. FFN: its input, the root and the output; the router's scores twice in fp32, its choice
// and the map of rows. Experts: their input, 2f of the first product, 2f bounded, f of the
// activation, each of 4 rows a token.
TEST_CASE("a layer of gpt-oss keeps its bounded gate beside what the product made") {
  const std::int64_t attention = 2 * kHidden + 4 + 2 * kHidden + 2 * 80 * 64 + 4 * 64 + 2 * 64 * 64;
  const std::int64_t ffn = 2 * kHidden + 4 + 2 * kHidden;
  const std::int64_t router = 2 * 32 * 4 + 32 + 8 * kTopk + 4 * (2 * 32 + 1);
  const std::int64_t experts = kTopk * 2 * (kHidden + 2 * kFfn + 2 * kFfn + kFfn);
  CHECK(kept_bytes(gpt_oss_job()) == kTokens * (attention + ffn + router + experts));
}

TEST_CASE("recomputing the activation drops what was bounded, and the whole mixture all of it") {
  const Job job = gpt_oss_job();
  const auto kept = [&](bool moe_act, bool moe) {
    Plan plan = kEightRanks;
    plan.recompute.granularity = RecomputeGranularity::kSelective;
    plan.recompute.modules = {.core_attn = false, .moe_act = moe_act, .moe = moe};
    return kept_bytes(job, plan);
  };
  CHECK(kept_bytes(job) - kept(true, false) == kTokens * kTopk * 2 * 3 * kFfn);
  CHECK(kept(true, false) - kept(false, true) >= kTokens * kTopk * 2 * (kHidden + 2 * kFfn));
}

// core/transformer/mlp.py glu by operators: the bounded gate, its activation, 1 + up and what the
// rows' weights multiply, of f each; fused, 2f put together.
TEST_CASE("a bounded gate by operators keeps two factors more than a fused one") {
  Job job = gpt_oss_job();
  const std::int64_t fused = kept_bytes(job);
  job.profile.swiglu = SwigluKind::kUnfused;
  CHECK(kept_bytes(job) - fused == kTokens * kTopk * 2 * (4 - 2) * kFfn);
}

TEST_CASE("biases behind experts take the type of the rows' weights, of all rows twice") {
  Job job = gpt_oss_job();
  const std::int64_t elements = kTokens * kTopk * kHidden;
  CHECK(row_bytes(job, "experts.biased_outputs") == 2 * 2 * elements);
  CHECK(row_bytes(job, "experts.bias_gradients") == 2 * (elements - kTokens * kTopk * kFfn));
  job.profile.moe_router_dtype = DType::kFp32;
  CHECK(row_bytes(job, "experts.biased_outputs") == 2 * 4 * elements);
  // All rows and, of one of four experts, two factors; less the activation's gradient in bf16.
  CHECK(row_bytes(job, "experts.bias_gradients") ==
        4 * (elements + 2 * elements / 4 - kTokens * kTopk * kFfn / 2));
  job.profile.moe_grouped_gemm = false;
  job.model.activation = Activation::kSilu;
  CHECK(row_bytes(job, "experts.biased_outputs") == 4 * elements / 4);
  job.model.moe.biased_experts = false;
  CHECK(row_bytes(job, "experts.biased_outputs") == 0);
}

// TE's unfused attention: one more column of scores, of which softmax saves fp32 probabilities, the
// product those in bf16, and the filling its mask; keys and values are repeated for every query
// head. cuDNN saves a sum a head, and takes keys and values as they are.
TEST_CASE("unfused attention keeps one more column than keys, twice, and its mask") {
  Job job = gpt_oss_job();
  const std::int64_t fused = kept_bytes(job);
  job.profile.attention_backend = AttentionBackend::kUnfused;
  REQUIRE(!why_invalid(job, kEightRanks));
  const std::int64_t columns = kTokens + 1;
  CHECK(kept_bytes(job) - fused == 64 * kTokens * columns * (4 + 2) + kTokens * columns -
                                       64 * kTokens * 4 +
                                       kTokens * (2 * 2 * 64 * 64 - 2 * 2 * 8 * 64));
}

TEST_CASE("sinks run in cuDNN's kernels on every GPU, and FlashAttention is refused") {
  const Job job = gpt_oss_job();
  CHECK(kept_bytes(gpt_oss_job("1x8-a100-sxm-80gb")) == kept_bytes(job));
  check_refused(
      job,
      {{"sinks_need_fused_or_unfused_attention",
        [](Job& spoiled, Plan&) { spoiled.profile.attention_backend = AttentionBackend::kFlash; },
        {"flash with attention sinks (gpt_oss)", "auto, fused, unfused"}},
       {"sinks_with_cp_need_a2a",
        [](Job&, Plan& plan) {
          plan.cp = 2;
          plan.ep = 2;
          plan.cp_method = CpMethod::kAllGather;
        },
        {"cp 2", "cp_method all_gather", "cp_method a2a"}},
       {"biased_experts_need_etp_1",
        [](Job&, Plan& plan) {
          plan.tp = 2;
          plan.sequence_parallel = true;
          plan.etp = 2;
          plan.ep = 4;
        },
        {"etp 2", "etp 1"}},
       {"biased_experts_without_shared",
        [](Job& spoiled, Plan&) {
          spoiled.model.moe.shared_ffn = 2880;
          spoiled.model.activation = Activation::kSilu;
        },
        {"shared_ffn 2880", "--disable-bias-linear"}},
       {"unsupported: model.activation",
        [](Job& spoiled, Plan&) { spoiled.profile.moe_grouped_gemm = false; },
        {"clamped SwiGLU (gpt_oss)", "moe_grouped_gemm true"}}},
      kEightRanks);
}

TEST_CASE("every second layer of gpt-oss attends to 128 keys alone, which takes less time") {
  const Job job = gpt_oss_job();
  const ModelTimes times = model_times(job, kEightRanks);
  REQUIRE(times.layers.size() == 2);
  const LayerTime& windowed = times.layers[0];
  const LayerTime& full = times.layers[1];
  CHECK(job.model.layers[0].attention_window == 128);
  CHECK(windowed.time.forward_s < full.time.forward_s);
  CHECK(windowed.time.backward_input_s < full.time.backward_input_s);
}

TEST_CASE("biases and bounds of experts take time beyond that of plain ones") {
  Job job = gpt_oss_job();
  const auto forward_s = [&] {
    return model_times(job, kEightRanks).layers.front().time.forward_s;
  };
  const double all = forward_s();
  job.model.moe.biased_experts = false;
  const double without_biases = forward_s();
  job.model.activation = Activation::kSilu;
  CHECK(forward_s() < without_biases);
  CHECK(without_biases < all);
}

TEST_CASE("biases cost the host for each expert of a rank") {
  Job job = gpt_oss_job();
  const auto both_s = [&](const Plan& plan) {
    const HostCost cost =
        layer_host(job, plan, job.model.layers.front(), framework_of(job.profile).kernels.host)
            .launches;
    return cost.forward_s + cost.backward_s;
  };
  const double four = both_s(kEightRanks);
  const double eight = both_s({.ep = 4});
  job.model.moe.biased_experts = false;
  CHECK(eight - both_s({.ep = 4}) == doctest::Approx(2 * (four - both_s(kEightRanks))));
  CHECK(four > both_s(kEightRanks));
}

}  // namespace
}  // namespace shardplan::megatron
