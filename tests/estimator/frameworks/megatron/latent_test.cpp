// Experts of projected tokens (moe_latent_size) under Megatron-LM, counted by hand from MoELayer of
// core_v0.16.1: hidden size 1024, projected to 256; 16 experts, of which a token chooses 4, and a
// shared one, 512 wide, without gates; sequences of 1024.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/weights.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/parameters.h"
#include "estimator/price/price.h"
#include "estimator/time/model_flops.h"
#include "tests/estimator/broken_plans.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kLatent = 256;
constexpr std::int64_t kExperts = 16;
constexpr std::int64_t kTopk = 4;
constexpr std::int64_t kFfn = 512;

constexpr LayerSpec kExpertLayer = {.is_moe = true, .mixer = MixerKind::kNone, .has_rotary = false};

Job latent_job(std::int64_t latent = kLatent, const char* cluster = "1x1-h100") {
  const Library library;
  Job job;
  job.model.name = "small";
  job.model.family = "nemotron_h";
  job.model.hidden = kHidden;
  job.model.ffn = kFfn;
  job.model.gated_ffn = false;
  job.model.activation = Activation::kReluSquared;
  job.model.vocab = 32000;
  job.model.num_heads = 8;
  job.model.num_kv_heads = 2;
  job.model.head_dim = 128;
  job.model.norms_per_layer = 1;
  job.model.moe = {.num_experts = kExperts,
                   .topk = kTopk,
                   .expert_ffn = kFfn,
                   .shared_ffn = kFfn,
                   .latent = latent};
  const LayerSpec attention = {.has_ffn = false, .has_rotary = false};
  job.model.layers = {attention, kExpertLayer, attention, kExpertLayer};
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 8;
  return job;
}

BlockMemory experts_of(const Job& job, const Plan& plan = {}) {
  return block_set(job, plan)[static_cast<std::size_t>(BlockKind::kMoeLayer)];
}
std::string refusal(const Job& job, const Plan& plan) {
  const auto reason = why_invalid(job, plan);
  return reason ? reason->message : "";
}
std::int64_t kept_bytes(const Job& job, const Plan& plan = {}) {
  return experts_of(job, plan).summary.kept_bytes;
}
std::int64_t row_bytes(const Job& job, std::string_view name, const Plan& plan = {}) {
  const std::vector<BlockRow> rows = experts_of(job, plan).rows;
  const auto row = std::ranges::find(rows, name, &BlockRow::name);
  return row == rows.end() ? 0 : row->bytes;
}

// Of a token: the norm's input and output with its root; scores, choices and places of rows.
constexpr std::int64_t kFront = 2 * kHidden + 2 * kHidden + 4 + 2 * 4 * kExperts + kExperts +
                                8 * kTopk + 4 * (2 * kExperts + 1);
// Of each of its copies both products' inputs, the first one's output, and what probabilities
// weigh; of the shared expert an output and an input.
constexpr std::int64_t experts_bytes(std::int64_t seen) {
  return kTopk * 2 * (seen + 3 * kFfn) + 2 * 2 * kFfn;
}

TEST_CASE("experts of projected tokens keep narrow rows, and what is projected back") {
  CHECK(kept_bytes(latent_job(0)) == kTokens * (kFront + experts_bytes(kHidden)));
  CHECK(kept_bytes(latent_job()) == kTokens * (kFront + experts_bytes(kLatent) + 2 * kLatent));
  CHECK(kept_bytes(latent_job(), {.micro_batch = 2}) == 2 * kept_bytes(latent_job()));
}

TEST_CASE("projected to their own width tokens go the way of a plain mixture") {
  for (const MoeDispatcher dispatcher : {MoeDispatcher::kAllToAll, MoeDispatcher::kAllGather,
                                         MoeDispatcher::kDeepEp, MoeDispatcher::kHybridEp}) {
    Job same = latent_job(kHidden, "1x8-h100");
    Job plain = latent_job(0, "1x8-h100");
    same.profile.moe_dispatcher = plain.profile.moe_dispatcher = dispatcher;
    const Plan plan = {.ep = 8, .zero = 1};
    std::vector<BlockRow> rows = experts_of(same, plan).rows;
    std::erase_if(rows, [](const BlockRow& row) { return row.name.starts_with("latent."); });
    const std::vector<BlockRow> expected = experts_of(plain, plan).rows;
    REQUIRE(rows.size() == expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(expected[i].name);
      CHECK(rows[i].name == expected[i].name);
      CHECK(rows[i].bytes == expected[i].bytes);
    }
    CHECK(kept_bytes(same, plan) == kept_bytes(plain, plan) + kTokens * 2 * kHidden);
    CHECK(dispatch_buffer_bytes(same, plan) == dispatch_buffer_bytes(plain, plan));
    CHECK(layer_time(same, plan, kExpertLayer).forward_ep_s ==
          layer_time(plain, plan, kExpertLayer).forward_ep_s);
  }
}

TEST_CASE("projected tokens are exchanged as those of a model of that width") {
  for (const MoeDispatcher dispatcher : {MoeDispatcher::kAllToAll, MoeDispatcher::kAllGather,
                                         MoeDispatcher::kDeepEp, MoeDispatcher::kHybridEp}) {
    Job job = latent_job(kLatent, "1x8-h100");
    Job narrow = latent_job(0, "1x8-h100");
    narrow.model.hidden = kLatent;
    job.profile.moe_dispatcher = narrow.profile.moe_dispatcher = dispatcher;
    const Plan plan = {.ep = 8, .zero = 1};
    CHECK(dispatch_buffer_bytes(job, plan) == dispatch_buffer_bytes(narrow, plan));
    CHECK(layer_time(job, plan, kExpertLayer).forward_ep_s ==
          layer_time(narrow, plan, kExpertLayer).forward_ep_s);
    for (const std::string_view name : {"experts.received_tokens", "experts.fc1_input",
                                        "experts.unsorted_output", "experts.fc2_gradient"}) {
      CHECK(row_bytes(job, name, plan) == row_bytes(narrow, name, plan));
    }
  }
}

// TELinear, parallel_mode duplicated.
TEST_CASE("projections are whole on every rank and work on its part of the sequence") {
  const Job job = latent_job(kLatent, "1x2-h100");
  const Plan plan = {.tp = 2, .sequence_parallel = true};
  REQUIRE(refusal(job, plan) == "");
  constexpr std::int64_t kProjections = 2 * kHidden * kLatent;
  constexpr std::int64_t kWhole = kHidden + kHidden * kExperts + kProjections;
  const LocalParameters whole = block_parameters(latent_job(), {}, BlockKind::kMoeLayer);
  const LocalParameters half = block_parameters(job, plan, BlockKind::kMoeLayer);
  CHECK(whole.dense == kWhole + 2 * kHidden * kFfn);
  CHECK(half.dense == kWhole + kHidden * kFfn);
  CHECK(whole.expert == kExperts * 2 * kLatent * kFfn);
  CHECK(row_bytes(job, "latent.combined_tokens", plan) == kTokens / 2 * 2 * kLatent);
  CHECK(row_bytes(job, "latent.token_gradient", plan) == kTokens / 2 * 2 * kLatent);
}

// Operators of bias_act_func under PyTorch's memory profiler, squared ReLU as one that saves its
// input: 6 bytes of a number at most in backward, 12 with weights in fp32; forward 4 more then.
TEST_CASE("backward of weighted activations holds the gradients of both factors at once") {
  Job job = latent_job();
  const auto most = [&] {
    return row_bytes(job, "experts.activation_gradient") + row_bytes(job, "experts.fc1_gradient") +
           row_bytes(job, "experts.factor_gradients");
  };
  constexpr std::int64_t kNumbers = kTokens * kTopk * kFfn;
  CHECK(most() == 6 * kNumbers);
  CHECK(row_bytes(job, "experts.scaled_activation_fp32") == 0);
  job.profile.moe_router_dtype = DType::kFp32;
  CHECK(most() == 12 * kNumbers);
  CHECK(row_bytes(job, "experts.scaled_activation_fp32") == 4 * kNumbers);
  job.model.gated_ffn = true;
  CHECK(row_bytes(job, "experts.factor_gradients") == 0);
}

// MoELayer makes both before its experts; a shared expert follows.
TEST_CASE("weights lie in the order in which the layer makes them") {
  const std::vector<WeightShape> shapes = weight_shapes(latent_job(), {}, BlockKind::kMoeLayer);
  const std::vector<WeightShape> expected = {{.rows = kLatent, .columns = kHidden},
                                             {.rows = kHidden, .columns = kLatent},
                                             {.rows = kFfn, .columns = kLatent, .count = kExperts},
                                             {.rows = kLatent, .columns = kFfn, .count = kExperts},
                                             {.rows = kFfn, .columns = kHidden},
                                             {.rows = kHidden, .columns = kFfn}};
  CHECK(shapes == expected);
}

// A rank with one expert, as wide as the tokens are projected to.
TEST_CASE("projections are no experts' weights, whatever their widths are") {
  Job job = latent_job(kFfn, "2x8-h100");
  job.global_batch = 16;
  const Plan plan = {.ep = kExperts, .zero = 1};
  REQUIRE(refusal(job, plan) == "");
  const StagePieces stage = plan_pieces(job, plan).stages.front();
  const StageTensors tensors = stage_tensors(job, plan, stage.layout, buffers(job, plan));
  const StageWeights weights = stage_weights(job, plan, stage.layout, tensors, 0);
  const auto count = [&](std::int64_t elements) {
    return std::ranges::count(weights.of_chunk.front(), elements);
  };
  CHECK(count(kFfn * kHidden) == 2 * (2 + 2));  // two layers of projections and shared experts
  CHECK(count(kFfn * kFfn) == 2 * 2);
}

TEST_CASE("replayed mixtures keep nothing of their projections") {
  const Plan plan = {
      .recompute = {.granularity = RecomputeGranularity::kSelective, .modules = {.moe = true}}};
  CHECK(kept_bytes(latent_job(), plan) == kTokens * (2 * kHidden + 2 * kHidden + 4));
}

// The first projection's input is another copy, as no one tells it to save what the router saves.
TEST_CASE("in fp8 both projections keep their inputs in one byte") {
  const Plan plan = {.precision = Precision::kFp8};
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise}) {
    Job job = latent_job();
    job.profile.fp8_recipe = recipe;
    REQUIRE(refusal(job, plan) == "");
    CHECK(row_bytes(job, "latent.fc1_input_fp8", plan) == kTokens * kHidden);
    CHECK(row_bytes(job, "latent.combined_tokens", plan) == kTokens * kLatent);
  }
  CHECK(row_bytes(latent_job(), "latent.fc1_input_fp8") == 0);
}

// Megatron-LM core_v0.16.1 training/training.py, moe_layer_flops: 4 * tokens * (l * topk * f + h *
// l) of the routed part forward, three times that with backward; here in each of two layers.
TEST_CASE("routed experts cost the FLOPs of their own width, and projections theirs") {
  constexpr double kPlain = 4.0 * kHidden * kTopk * kFfn;
  constexpr double kProjected = 4.0 * (kLatent * kTopk * kFfn + kHidden * kLatent);
  CHECK(model_flops_per_token(latent_job(0)) - model_flops_per_token(latent_job()) ==
        doctest::Approx(2 * 3 * (kPlain - kProjected)));
}

// Published: 120,668,687,360 without the biases of choices, which are buffers here as well.
TEST_CASE("stages of Nemotron 3 Super hold the parameters of its checkpoint") {
  const Library library;
  Job job = latent_job();
  job.model = library.model("nemotron-3-super-120b-a12b").model;
  job.cluster = library.cluster("1x8-h200");
  const Plan plan = {.pp = 8, .schedule = Schedule::k1F1B};
  REQUIRE(refusal(job, plan) == "");
  std::int64_t elements = 0;
  for (const StagePieces& stage : plan_pieces(job, plan).stages) {
    const StageTensors tensors = stage_tensors(job, plan, stage.layout, {});
    elements += tensors.dense + tensors.expert;
  }
  CHECK(elements == 120'668'687'360);
}

TEST_CASE("prices of experts of projected tokens equal their estimates") {
  const Library library;
  Job job = latent_job();
  job.model = library.model("nemotron-3-super-120b-a12b").model;
  job.cluster = library.cluster("1x8-h200");
  job.global_batch = 64;
  PriceTable table = build_price_table(job);
  for (const std::int64_t tp : {1, 2}) {
    for (const RecomputeModules modules :
         {RecomputeModules{}, {.moe = true}, {.layernorm = true, .moe_act = true}}) {
      const bool replays = modules.moe || modules.moe_act;
      const Plan plan = {.tp = tp,
                         .ep = 8,
                         .zero = 1,
                         .sequence_parallel = tp > 1,
                         .recompute = {.granularity = replays ? RecomputeGranularity::kSelective
                                                              : RecomputeGranularity::kNone,
                                       .modules = modules}};
      REQUIRE(refusal(job, plan) == "");
      const Price priced = price(table, plan);
      CHECK(priced.allocated_bytes == estimate_memory(job, plan).stages.front().allocated_bytes);
      CHECK(priced.step_time_s == estimate_step_time(job, plan).total_s);
    }
  }
}

TEST_CASE("what stands not beside experts of projected tokens is said by its name") {
  check_refused(latent_job(kLatent, "1x8-h100"),
                {{"latent_experts_need_exposed_exchanges",
                  [](Job& job, Plan&) { job.profile.moe_shared_expert_overlap = true; },
                  {"moe_shared_expert_overlap", "projected tokens", "false"}},
                 {"unsupported: zero", [](Job&, Plan& plan) { plan.zero = 3; }, {"zero 3", "0, 1"}},
                 {"unsupported: model.moe.biased_experts",
                  [](Job& job, Plan&) {
                    job.model.moe.biased_experts = true;
                    job.model.moe.shared_ffn = 0;
                  },
                  {"biased_experts", "--disable-bias-linear"}},
                 {"unsupported: trained",
                  [](Job& job, Plan&) {
                    job.adapters = {.rank = 8, .dtype = DType::kBf16};
                    job.adapters.targets.fill(true);
                  },
                  {"projected tokens", "all parameters"}},
                 {"hybrids_predict_one_token",
                  [](Job& job, Plan&) { job.model.num_mtp_layers = 1; },
                  {"num_mtp_layers 1", "MambaModel", "valid: 0"}},
                 {"fp8_widths_divisible",
                  [](Job& job, Plan& plan) {
                    job.model.moe.latent = 250;
                    plan.precision = Precision::kFp8;
                  },
                  {"latent 250", "16"}}},
                {});
}

}  // namespace
}  // namespace shardplan::megatron
