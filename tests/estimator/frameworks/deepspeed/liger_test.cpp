// Liger's kernels in the model that DeepSpeed trains, counted by hand.
#include "estimator/frameworks/deepspeed/liger.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/framework.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kHidden = 4096, kFfn = 14336, kVocab = 128'256, kLayers = 32;
constexpr std::int64_t kTokens = 1024;

Job job_with(LigerKernel liger, std::int64_t microbatches = 1) {
  Job job = deepspeed_job(microbatches);
  job.profile.liger_kernel = liger;
  return job;
}

// At the fullest instant of the forward pass, which is in the loss.
std::int64_t held_bytes(const Job& job, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, deepspeed_plan(2)).rows) {
    bytes += row.name == name && row.is_alive(Phase::kForward) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t peak_of(const Job& job, const Plan& plan, std::string_view name) {
  const auto moments = estimate_memory(job, plan).stages.front().moments;
  const auto found = std::ranges::find(moments, name, &Moment::name);
  REQUIRE(found != moments.end());
  return found->allocated_bytes;
}

}  // namespace

// The first is the example of ops/fused_linear_cross_entropy.py: 32000 over 4096 is 8.
TEST_CASE("Liger's chunks have the next power of two of tokens that make logits as hidden states") {
  ModelSpec model;
  model.hidden = 4096;
  model.vocab = 32'000;
  CHECK(liger_chunk_tokens(4096 * 4, model) == 2048);
  model.vocab = kVocab;  // 32 times as wide
  CHECK(liger_chunk_tokens(8192, model) == 256);
  CHECK(liger_chunk_tokens(8193, model) == 512);
  model.vocab = 4096;
  CHECK(liger_chunk_tokens(100, model) == 100);
}

// Either norm its input, output and a root a row; projections turned in place, attention's output
// and sums; gate, up and their product. The final norm its input, its root, and until the loss is
// there its output.
TEST_CASE("with Liger a layer keeps norms' inputs instead of fp32, and no silu") {
  const Job job = job_with(LigerKernel::kOn);
  const std::int64_t hidden = 2 * kHidden * kTokens;
  CHECK(held_bytes(job, "layer.residual") == (2 * kLayers + 1) * hidden);
  CHECK(held_bytes(job, "layer.norm_output") == (2 * kLayers + 1) * hidden);
  CHECK(held_bytes(job, "layer.norm_fp32") == (2 * kLayers + 1) * 4 * kTokens);
  CHECK(held_bytes(job, "layer.attention") == kLayers * (2 * hidden + 2 * hidden / 4));
  CHECK(held_bytes(job, "layer.ffn") == kLayers * 3 * 2 * kFfn * kTokens);
}

// 1024 tokens over 32 make chunks of 32.
TEST_CASE("with Liger the loss holds logits of one chunk, and the gradients that it has made") {
  const Job job = job_with(LigerKernel::kOn);
  CHECK(held_bytes(job, "head.logits") == 0);
  CHECK(held_bytes(job, "head.logits_fp32") == 0);
  CHECK(held_bytes(job, "head.logits_chunk") == 2 * kVocab * 32);
  CHECK(held_bytes(job, "head.losses") == 5 * kTokens);
  CHECK(held_bytes(job, "head.hidden_gradient") == 2 * kHidden * kTokens);
  CHECK(held_bytes(job, "gradients.of_weights") == 2 * kVocab * kHidden);
}

TEST_CASE("Liger to 0.8.2 holds the head's weight in bf16 and in fp32 beside its gradient") {
  for (const std::int64_t zero : {2, 3}) {
    const auto at_loss = [&](LigerKernel liger) {
      return peak_of(job_with(liger), deepspeed_plan(zero), "loss forward");
    };
    CHECK(at_loss(LigerKernel::kThrough082) == at_loss(LigerKernel::kOn) + 6 * kVocab * kHidden);
  }
}

// Their input in fp32 and normed value: twice and once what a projection has, of which Liger's keep
// the input alone; a root of each is kept either way.
TEST_CASE("Liger to 0.8.2 leaves norms of heads as they are") {
  const auto kept = [](LigerKernel liger) {
    Job job = job_with(liger);
    job.model.qk_norm = true;
    std::int64_t bytes = 0;
    for (const StateRow& row : state_of_stage(job, deepspeed_plan(2)).rows) {
      const bool is_kept = row.name == "layer.norm_fp32" || row.name == "layer.norm_output" ||
                           row.name == "layer.attention";
      bytes += is_kept && row.is_alive(Phase::kForward) ? row.total_bytes() : 0;
    }
    return bytes;
  };
  const std::int64_t heads = 2 * (kHidden + kHidden / 4) * kTokens;
  CHECK(kept(LigerKernel::kThrough082) - kept(LigerKernel::kOn) == kLayers * 2 * heads);
}

// The whole model reads the head's weight: ZeRO-3 gathers it with the model's call, before layers
// run, and lets go of it when the backward pass has ended.
TEST_CASE("with Liger ZeRO-3 has the head gathered while layers run") {
  const auto in_layers = [](LigerKernel liger) {
    Job job = job_with(liger, 2);
    job.profile.prefetch_bucket_elements = 0;
    job.sequence_length = 64;
    Plan plan = deepspeed_plan(3);
    plan.recompute.granularity = RecomputeGranularity::kFull;
    return peak_of(job, plan, "recompute replay");
  };
  const std::int64_t more = in_layers(LigerKernel::kOn) - in_layers(LigerKernel::kOff);
  CHECK(more > 2 * kVocab * kHidden * 99 / 100);
  CHECK(more < 2 * kVocab * kHidden * 101 / 100);
}

// 8192 tokens make 32 chunks. Up to 0.8.2 each writes its product, turns it into fp32 and adds that
// to bf16; since then it reads the gradient that it adds to. Zeros are written once.
TEST_CASE("Liger's chunks add up the gradient of the head's weight") {
  Job job = job_with(LigerKernel::kOn);
  job.sequence_length = 8192;
  const auto of_head = [&] {
    const Plan plan = deepspeed_plan(2);
    return framework_of(job.profile)
        .kernels.loss(job, plan, tokens_per_microbatch(job, plan))
        .weight;
  };
  CHECK(of_head().fused == 2 + 32 * 2);
  job.global_batch *= 2;  // the loss is divided by the microbatches
  CHECK(of_head().fused == 2 + 32 * 2 + 4);
  job.profile.liger_kernel = LigerKernel::kThrough082;
  const KernelBytes old = of_head();
  CHECK(old.fused == 2 + 4);
  CHECK(old.converted == 32 * ((2 + 4) + (2 + 4 + 2)));
}

TEST_CASE("Liger takes less memory and time, and its older loss more of either") {
  for (const std::int64_t zero : {1, 2}) {
    CAPTURE(zero);
    const auto of = [&](LigerKernel liger) {
      Job job = job_with(liger, 2);
      job.sequence_length = 8192;
      const Plan plan = deepspeed_plan(zero);
      return std::pair(estimate_memory(job, plan).stages.front().allocated_bytes,
                       estimate_step_time(job, plan).total_s);
    };
    const auto [plain_bytes, plain_s] = of(LigerKernel::kOff);
    const auto [bytes, seconds] = of(LigerKernel::kOn);
    const auto [old_bytes, old_s] = of(LigerKernel::kThrough082);
    CHECK(bytes < old_bytes);
    CHECK(old_bytes < plain_bytes);
    CHECK(seconds < plain_s);
    CHECK(seconds < old_s);
  }
}

}  // namespace shardplan::deepspeed
