// DeepSpeed around models that are played operator by operator: adapters, quantized weights,
// experts, losses. Tensors of a small model are counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/host_memory.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

// Two layers of hidden 512, FFN 1024, 8 heads and 4 key-value heads of 64, a vocabulary of 1024,
// tables apart; one sequence of 512 tokens a rank.
Job small_job(std::string_view framework = "deepspeed") {
  Job job = llama_job(framework, {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, 2, 512, 2);
  job.model.num_kv_heads = 4;
  job.model.vocab = 1024;
  return job;
}
constexpr std::int64_t kLinear = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024;
constexpr std::int64_t kTables = 2 * 1024 * 512;
constexpr std::int64_t kNorms = 5 * 512;
constexpr std::int64_t kModel = 2 * kLinear + kTables + kNorms;

// Per layer: A 16 * 512 and B 512 * 16 of q, A 16 * 512 and B 256 * 16 of v.
constexpr std::int64_t kAdapters = 2 * 16 * (512 + 512 + 512 + 256);
Job with_adapters(Job job) {
  job.adapters = {.rank = 16, .targets = {true, false, true}};
  return job;
}

// Experts of 256 in place of gate, up and down: 4, two a token; a router.
constexpr std::int64_t kExperts = 4 * 3 * 512 * 256 + 4 * 512;
Job with_experts(Job job) {
  job.model.family = "qwen3_moe";
  job.model.moe = {.num_experts = 4, .topk = 2, .expert_ffn = 256};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}
constexpr std::int64_t kModelOfExperts = kModel + 2 * (kExperts - 3 * 512 * 1024);

std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan, 0).rows) {
    bytes += row.name == name && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name) {
  return held_bytes(job, plan, Phase::kIdle, name);
}

Plan recomputed(Plan plan) {
  plan.recompute = {.granularity = RecomputeGranularity::kFull,
                    .method = RecomputeMethod::kUniform,
                    .num_layers = 1};
  return plan;
}

TEST_CASE("ZeRO-1 and 2 flatten adapters alone, in bf16, beside the whole frozen model") {
  const Job job = with_adapters(small_job());
  for (const std::int64_t zero : {1, 2}) {
    CAPTURE(zero);
    const Plan plan = deepspeed_plan(zero);
    CHECK(idle_bytes(job, plan, "parameters") == 2 * kModel + 2 * kAdapters);
    CHECK(idle_bytes(job, plan, "optimizer.fp32_partition") == 4 * kAdapters / 2);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kAdapters / 2);
    CHECK(idle_bytes(job, plan, "gradients.of_weights") == 0);
  }
}

// All tensors of at most 100,000 elements stay gathered: norms, and adapters of at most 8,192.
TEST_CASE("ZeRO-3 divides frozen weights too, and keeps small tensors whole") {
  const Plan plan = deepspeed_plan(3);
  const Job older = with_adapters(small_job("deepspeed@0.16.9"));
  CHECK(idle_bytes(older, plan, "parameters") == 2 * (kModel + kAdapters) / 2);
  CHECK(idle_bytes(older, plan, "gathered_parameters") == 2 * (kNorms + kAdapters));
  CHECK(idle_bytes(older, plan, "optimizer.fp32_partition") == 4 * kAdapters / 2);
  Job none_stays = older;
  none_stays.profile.persistent_elements = 0;
  CHECK(idle_bytes(none_stays, plan, "gathered_parameters") == 0);
}

TEST_CASE("since 0.19.2 adapters of a model that was divided first stay in fp32") {
  const Plan plan = deepspeed_plan(3);
  const Job job = with_adapters(small_job());
  CHECK(idle_bytes(job, plan, "parameters") == 2 * kModel / 2 + 4 * kAdapters / 2);
  CHECK(idle_bytes(job, plan, "gathered_parameters") == 2 * kNorms + 4 * kAdapters);
  Job in_bf16 = job;
  in_bf16.adapters.dtype = DType::kBf16;
  CHECK(idle_bytes(in_bf16, plan, "parameters") == 2 * (kModel + kAdapters) / 2);
  CHECK(as_trained(job, deepspeed_plan(2)).adapters.dtype == DType::kBf16);
}

TEST_CASE("packed weights are held whole, and embedding, norms and head are bf16") {
  Job job = with_adapters(small_job());
  job.quantized = {.kind = Quantization::kNf4};
  const Plan plan = deepspeed_plan(2);
  CHECK(idle_bytes(job, plan, "parameters") == 2 * (kTables + kNorms) + 2 * kAdapters);
  // Half a byte an element, an fp32 scale for 64, and the code of each weight.
  CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * (kLinear / 2 + kLinear / 16 + 7 * 64));
}

// Scales belong to the module, whole on every rank.
TEST_CASE("ZeRO-3 divides packed weights that lie in a floating type") {
  Job job = with_adapters(small_job());
  job.quantized = {.kind = Quantization::kNf4};
  job.profile.float_quant_storage = true;
  const Plan plan = deepspeed_plan(3);
  CHECK(idle_bytes(job, plan, "parameters") ==
        2 * (kTables + kNorms + kAdapters) / 2 + 2 * kLinear / 2 / 2);
  CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * (kLinear / 16 + 7 * 64));
  CHECK(as_trained(job, plan).adapters.dtype == DType::kBf16);
}

TEST_CASE("experts are divided as all parameters are") {
  const Job job = with_experts(small_job());
  CHECK(idle_bytes(job, deepspeed_plan(2), "parameters") == 2 * kModelOfExperts);
  CHECK(idle_bytes(job, deepspeed_plan(2), "optimizer.exp_avg") == 4 * kModelOfExperts / 2);
  CHECK(idle_bytes(job, deepspeed_plan(3), "parameters") == 2 * kModelOfExperts / 2);
}

// Without prefetching, and with nothing that stays, at most one module is whole.
std::vector<std::int64_t> gather_buffers(Job job) {
  job.profile.persistent_elements = 0;
  job.profile.prefetch_bucket_elements = 0;
  const PlayedRun run = deepspeed_run(job, deepspeed_plan(3), 0, 1);
  std::vector<std::int64_t> buffers;
  std::size_t at = 0;
  for (const AllocationEvent& event : run.events) {
    if (event.bytes > 0) {
      while (at + 1 < run.labels.size() && run.labels[at + 1].after_id < event.id) { ++at; }
      if (run.labels[at].label->name == "gather_buffer") {
        buffers.push_back(event.bytes);
      }
    }
  }
  return buffers;
}

// A block of experts is one module: its gate and up projections, its down projections and its
// router, in both layers and both ways.
TEST_CASE("ZeRO-3 gathers a block of experts whole") {
  CHECK(gather_buffers(with_experts(small_job())) == std::vector<std::int64_t>(4, 2 * kExperts));
}

// Gate, up and down of 128, and the gate of one number a token.
TEST_CASE("shared experts are trained and gathered with their block") {
  Job job = with_experts(small_job());
  job.model.family = "qwen2_moe";
  job.model.moe.shared_ffn = 128;
  job.model.moe.shared_gate = true;
  constexpr std::int64_t kShared = 3 * 512 * 128 + 512;
  CHECK(gather_buffers(job) == std::vector<std::int64_t>(4, 2 * (kExperts + kShared)));
  CHECK(idle_bytes(job, deepspeed_plan(3), "optimizer.fp32_partition") ==
        4 * (kModelOfExperts + 2 * kShared) / 2);
  CHECK_FALSE(why_invalid(job, deepspeed_plan(3)));
  CHECK_FALSE(why_invalid(job, deepspeed_plan(2)));
}

// DeepSeek-V3: queries and keys through latents, one dense layer, then one with experts beside a
// shared one.
Job with_latents() {
  Job job = small_job();
  job.model.family = "deepseek_v3";
  job.model.attention = AttentionKind::kMla;
  job.model.num_kv_heads = job.model.num_heads;
  job.model.mla = {.q_lora_rank = 128,
                   .kv_lora_rank = 64,
                   .qk_nope_head_dim = 32,
                   .qk_rope_head_dim = 32,
                   .v_head_dim = 64};
  job.model.moe = {.num_experts = 4, .topk = 2, .expert_ffn = 256, .shared_ffn = 128};
  job.model.layers[1].is_moe = true;
  return job;
}

TEST_CASE("latent attention's parameters are divided with all others") {
  const Job job = with_latents();
  const std::int64_t parameters = count_parameters(job.model);
  CHECK(idle_bytes(job, deepspeed_plan(2), "parameters") == 2 * parameters);
  CHECK(idle_bytes(job, deepspeed_plan(2), "optimizer.exp_avg") == 4 * parameters / 2);
  CHECK(idle_bytes(job, deepspeed_plan(3), "parameters") == 2 * parameters / 2);
  for (const std::int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    CHECK_FALSE(why_invalid(job, deepspeed_plan(zero)));
    CHECK_FALSE(why_invalid(job, recomputed(deepspeed_plan(zero))));
  }
}

TEST_CASE("a dense model of latent attention is played operator by operator") {
  Job job = with_latents();
  job.model.moe = {};
  job.model.layers[1].is_moe = false;
  CHECK(plays_operators(job, deepspeed_plan(3)));
  CHECK(idle_bytes(job, deepspeed_plan(3), "parameters") == count_parameters(job.model));
}

TEST_CASE("TRL's chunks keep no logits of all tokens") {
  Job job = small_job();
  const auto most = [&](HeadLoss loss) {
    job.profile.head_loss = loss;
    return state_of_stage(job, deepspeed_plan(2), 0)
        .played->moments[static_cast<std::size_t>(MomentKind::kLossBackward)];
  };
  job.model.vocab = 64'000;
  job.sequence_length = 4096;
  // Of the logits in fp32: their log-softmax and two gradients, but for 256 tokens.
  CHECK(most(HeadLoss::kStock) - most(HeadLoss::kChunked) > 4 * 64'000 * (2 * 4096 - 4 * 256));
}

TEST_CASE("checkpoints without reentrance keep no output of a layer for its gradient") {
  Job job = with_adapters(small_job());
  job.sequence_length = 8192;
  const auto peak = [&](bool is_reentrant) {
    job.profile.reentrant_checkpoint = is_reentrant;
    return state_of_stage(job, recomputed(deepspeed_plan(2)), 0)
        .played->moments[static_cast<std::size_t>(MomentKind::kBackward)];
  };
  CHECK(peak(true) > peak(false));
}

TEST_CASE("what no tape of tensors knows is played operator by operator") {
  const Plan plan = deepspeed_plan(2);
  CHECK_FALSE(plays_operators(small_job(), plan));
  CHECK_FALSE(plays_operators(small_job(), recomputed(plan)));
  CHECK(plays_operators(with_adapters(small_job()), plan));
  CHECK(plays_operators(with_experts(small_job()), plan));
  Job job = small_job();
  job.model.qkv_bias = true;
  CHECK(plays_operators(job, plan));
  job = small_job();
  job.model.family = "gemma2";
  CHECK(plays_operators(job, plan));
  job = small_job();
  job.profile.reentrant_checkpoint = false;
  CHECK_FALSE(plays_operators(job, plan));
  CHECK(plays_operators(job, recomputed(plan)));
}

TEST_CASE("DeepSpeed refuses by name what of adapters and packed weights is not modelled") {
  check_refused(with_adapters(small_job()),
                {{"unsupported: quantization",
                  [](Job& job, Plan& plan) {
                    job.quantized.kind = Quantization::kNf4;
                    plan.zero = 3;
                  },
                  {"nf4 with zero 3 and float_quant_storage false", "zero 1, zero 2"}},
                 {"unsupported: adapters_of_experts",
                  [](Job& job, Plan& plan) {
                    job.adapters.targets.fill(true);
                    job.adapters.expert_targets = ExpertTargets::kFfnNames;
                    job.model.family = "olmoe";
                    job.model.moe = {.num_experts = 4, .topk = 2, .expert_ffn = 256};
                    for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
                    plan.zero = 3;
                  },
                  {"experts with zero 3", "zero 1 or 2"}},
                 {"unsupported: precision_with_quantization",
                  [](Job& job, Plan& plan) {
                    job.quantized.kind = Quantization::kNf4;
                    plan.precision = Precision::kFp16;
                  },
                  {"fp16 with nf4", "bf16"}},
                 {"unsupported: model.head_dim",
                  [](Job& job, Plan&) {
                    job.model.head_dim = 320;
                    job.profile.attention_backend = AttentionBackend::kFlash;
                  },
                  {"320"}},
                 {"zero_3_trains_one_type",
                  [](Job& job, Plan& plan) {
                    job.adapters.trains_head = true;
                    plan.zero = 3;
                  },
                  {"fp32", "half precision with zero 3"}},
                 {"quantized_weights_need_adapters",
                  [](Job& job, Plan&) {
                    job.adapters = {};
                    job.quantized.kind = Quantization::kNf4;
                  },
                  {"nf4"}}},
                deepspeed_plan(2));
}

TEST_CASE("fp16 takes what bf16 takes") {
  const Job job = with_adapters(small_job());
  Plan plan = deepspeed_plan(2);
  const std::int64_t bytes = state_of_stage(job, plan, 0).played->steady_bytes;
  plan.precision = Precision::kFp16;
  CHECK(state_of_stage(job, plan, 0).played->steady_bytes == bytes);
  CHECK(idle_bytes(job, plan, "parameters") == 2 * kModel + 2 * kAdapters);
}

// Of both: tensors in the order of model.parameters(), trained ones first.
TEST_CASE("a dense model has the same tensors either way") {
  Job job = small_job();
  const std::vector<std::int64_t> known = trained_tensors(job, deepspeed_plan(2));
  job.profile.head_loss = HeadLoss::kChunked;
  CHECK(trained_tensors(job, deepspeed_plan(2)) == known);
  CHECK(known == deepspeed_tensors(job.model));
}

TEST_CASE("of adapters the host holds their parts, and of offloaded frozen weights theirs") {
  const Job job = with_adapters(small_job("deepspeed@0.16.9"));  // not page-locked
  Plan plan = deepspeed_plan(3);
  plan.offload.optimizer = 1;
  // Main parameters, moments and gradients in fp32, gradients in bf16.
  CHECK(host_bytes(job, plan) == (4 + 8 + 4 + 2) * kAdapters / 2);
  plan.offload.parameters = true;
  CHECK(host_bytes(job, plan) == (4 + 8 + 4 + 2) * kAdapters / 2 + 65'536 + 2 * kModel / 2);
}

}  // namespace
}  // namespace shardplan::deepspeed
