// Experts that axolotl deals to ranks by DeepEP, counted by hand.
#include <doctest/doctest.h>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/huggingface/dispatched_experts.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kExperts = 8 * 3 * 512 * 512;  // of a layer

Job dealt_job(std::int64_t gpus) {
  Job job = small_trainer_job(gpus);
  job.model.family = "qwen3_moe";
  job.model.qk_norm = true;
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 512};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  return job;
}

Plan dealt_plan(std::int64_t zero, std::int64_t ep) {
  Plan plan = trainer_plan(zero);
  plan.ep = ep;
  return plan;
}

// Of two experts of eight none is among four others with probability 3/7 * 1/2; both ranks send.
TEST_CASE("a rank receives tokens with a choice among its experts once") {
  const huggingface::ExpertSizes sizes = {.tokens = kTokens, .experts = 8, .chosen = 2};
  CHECK(huggingface::received_tokens(sizes, 2) == 805);  // 1024 * 22 / 28
  CHECK(huggingface::received_tokens(sizes, 8) == 1024);
  const huggingface::ExpertSizes all = {.tokens = kTokens, .experts = 8, .chosen = 8};
  CHECK(huggingface::received_tokens(all, 4) == 4 * kTokens);
}

// DDP's buckets are of what all ranks have; whole experts come to every GPU first.
TEST_CASE("ranks have their own experts under DDP, which leaves them out of its buckets") {
  const Job job = dealt_job(2);
  const auto idle = [&](std::int64_t ep, const char* row) {
    return idle_bytes(job, dealt_plan(0, ep), row);
  };
  CHECK(why_invalid(job, dealt_plan(0, 2)) == std::nullopt);
  CHECK(idle(1, "parameters") - idle(2, "parameters") == 2 * 2 * kExperts / 2);
  CHECK(idle(1, "ddp.buckets") - idle(2, "ddp.buckets") == 2 * 2 * kExperts);
  CHECK(idle(1, "optimizer.exp_avg") - idle(2, "optimizer.exp_avg") == 2 * 2 * kExperts / 2);
  CHECK(most_bytes(job, dealt_plan(0, 2), MomentKind::kStartUp, "parameters") ==
        idle(1, "parameters") + 2 * 2 * 512 * 512 * 8 / 2);  // and a part of gate and up
}

// Tokens in bf16, and of each both choices with weights; either choice is a row of the products.
TEST_CASE("experts of a rank run on every choice of the tokens that it receives") {
  constexpr std::int64_t kReceived = 805;
  const Job job = dealt_job(2);
  CHECK(most_bytes(job, dealt_plan(0, 2), MomentKind::kForward, "experts.received_tokens") >=
        kReceived * (2 * 512 + 2 * (8 + 4)));
  const auto ffn = [&](std::int64_t ep) {
    return most_bytes(job, dealt_plan(0, ep), MomentKind::kLossForward, "layer.ffn");
  };
  // A row: its input, gate and up, the activation and its product, output and weighted output.
  CHECK(ffn(2) - ffn(1) >= 2 * 2 * 2 * (kReceived - kTokens) * (2 * 512 + 4 * 512));
}

// What is no expert lies over all ranks, experts over those that have the same.
TEST_CASE("FSDP2 shards experts that are dealt over the ranks that have them") {
  const Job job = dealt_job(4);
  const Plan plan = dealt_plan(3, 2);
  CHECK(why_invalid(job, plan) == std::nullopt);
  CHECK(idle_bytes(job, plan, "parameters.shards") ==
        idle_bytes(job, dealt_plan(3, 1), "parameters.shards"));
  const auto gathered = [&](std::int64_t ep) {
    return most_bytes(job, dealt_plan(3, ep), MomentKind::kForward, "parameters.gathered");
  };
  CHECK(gathered(1) - gathered(2) == 2 * kExperts / 2);
}

TEST_CASE("dealt experts are refused where axolotl does not deal them") {
  check_refused(dealt_job(4),
                {{"unsupported: ep",
                  [](Job& job, Plan&) { job.profile.moe_dispatcher = MoeDispatcher::kAllToAll; },
                  {"moe_dispatcher alltoall", "deepep"}},
                 {"unsupported: ep",
                  [](Job& job, Plan&) { job.profile.eager_experts = true; },
                  {"other products than grouped ones"}},
                 {"ep_times_shards_is_world",
                  [](Job&, Plan& plan) { plan.ep = 2; },
                  {"ep 2 over 4 GPUs with zero 0", "valid: ep 4, or 2 GPUs"}},
                 {"ep_times_shards_is_world",
                  [](Job&, Plan& plan) {
                    plan.ep = 2;
                    plan.zero = 3;
                    plan.dp_replicate = 2;
                  },
                  {"zero 3 and dp_replicate 2", "dp_replicate 1"}},
                 {"ep_etp_need_experts",
                  [](Job& job, Plan&) {
                    job.model.moe = {};
                    for (LayerSpec& layer : job.model.layers) { layer.is_moe = false; }
                  },
                  {"no experts"}}},
                dealt_plan(0, 4));
}

}  // namespace
}  // namespace shardplan::transformers
