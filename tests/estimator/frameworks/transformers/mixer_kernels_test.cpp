// What mixers save of a forward pass where packages run them, counted by hand, and what they cost.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/huggingface/mixers/notes.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;

Job of_family(const char* family, MixerKind mixer) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.model.layers[0].mixer = mixer;
  job.profile.mixer_kernels = true;
  job.profile.convolution_kernels = true;
  return job;
}

constexpr const DeltaSpec& kDelta = kSmallDelta;

Job delta_net(const char* family) {
  Job job = small_delta_job(family);
  job.profile.mixer_kernels = true;
  job.profile.convolution_kernels = true;
  return job;
}

constexpr DeltaSpec kKimi = {
    .key_heads = 4, .value_heads = 4, .key_head_dim = 64, .value_head_dim = 64, .convolution = 4};

Job kimi_linear() {
  Job job = of_family("kimi_linear", MixerKind::kKimiDelta);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 0,
                   .kv_lora_rank = 128,
                   .qk_nope_head_dim = 64,
                   .qk_rope_head_dim = 32,
                   .v_head_dim = 64};
  job.model.num_kv_heads = job.model.num_heads;
  job.model.delta = kKimi;
  for (LayerSpec& layer : job.model.layers) { layer.has_rotary = false; }
  return job;
}

constexpr MambaSpec kMamba = {.num_heads = 16,
                              .head_dim = 32,
                              .inner = 512,
                              .state = 16,
                              .groups = 2,
                              .convolution = 4,
                              .chunk = 64};

Job bamba() {
  Job job = of_family("bamba", MixerKind::kMamba2);
  job.model.mamba = kMamba;
  return job;
}

Job falcon_h1() {
  Job job = of_family("falcon_h1", MixerKind::kAttention);
  for (LayerSpec& layer : job.model.layers) { layer.has_mamba_beside = true; }
  job.model.mamba = kMamba;
  job.model.mamba.gated_norm = false;
  return job;
}

Job jamba() {
  Job job = of_family("jamba", MixerKind::kMamba1);
  job.model.mamba = {
      .inner = 1024, .state = 16, .convolution = 4, .step_rank = 32, .inner_norms = true};
  for (LayerSpec& layer : job.model.layers) { layer.has_rotary = false; }
  return job;
}

Job lfm2() {
  Job job = of_family("lfm2", MixerKind::kShortConvolution);
  job.model.qk_norm = true;
  job.model.short_convolution = {.tokens = 3, .has_bias = false};
  return job;
}

Job by_operators(Job job) {
  job.profile.mixer_kernels = false;
  job.profile.convolution_kernels = false;
  return job;
}

constexpr auto kRow = "layer.recurrence";
constexpr MomentKind kWayBack = MomentKind::kLossBackward;

// Bytes of a token: what is convolved; of the norm and the gate three tensors in fp32, two of them
// cast and their product, a root a head; unit queries and keys of value heads with their lengths,
// values, decays summed up, rates and a triangle's row; softplus and its input.
TEST_CASE("a gated delta net keeps inputs of its kernels, and triangles of its chunks") {
  const std::int64_t heads = kDelta.value_heads;
  const std::int64_t keys = heads * kDelta.key_head_dim;
  const std::int64_t values = kDelta.value_width();
  const std::int64_t channels = 2 * kDelta.key_width() + values;
  const std::int64_t of_norm = (3 * 4 + 3 * 2) * values + 4 * heads;
  const std::int64_t of_rule =
      2 * 2 * keys + 2 * 4 * heads + 2 * values + 4 * heads + 2 * heads + 2 * 64 * heads;
  const std::int64_t of_decay = 2 * 4 * heads;
  const std::int64_t decay_rates = 2 * 4 * heads;
  CHECK(saved_bytes(delta_net("qwen3_5_text"), kRow) ==
        kTokens * (2 * channels + of_norm + of_rule + of_decay) + decay_rates);
}

TEST_CASE("Qwen3-Next's parts of one projection are saved as Qwen3.5's own projections are") {
  CHECK(saved_bytes(delta_net("qwen3_next"), kRow) == saved_bytes(delta_net("qwen3_5_text"), kRow));
}

// PyTorch's convolution has its input saved as the kernel's has, and its output, three tokens
// longer, for its activation.
TEST_CASE("a convolution by PyTorch keeps its output beside its input") {
  Job job = delta_net("qwen3_5_text");
  const std::int64_t with_kernel = saved_bytes(job, kRow);
  job.profile.convolution_kernels = false;
  const std::int64_t channels = 2 * kDelta.key_width() + kDelta.value_width();
  CHECK(saved_bytes(job, kRow) - with_kernel == 2 * channels * (kTokens + 3));
}

// Both low-rank products' inputs; of the decay a mask of bytes, its exponential, that shifted, the
// choice and the decay itself, which sums are kept beside; two matrices of a chunk's pairs; the
// norm in fp32 throughout, with the gate's sigmoid.
TEST_CASE("Kimi delta attention keeps its decay of every channel in fp32 five times") {
  const std::int64_t heads = kKimi.value_heads;
  const std::int64_t width = kKimi.value_width();
  const std::int64_t rank = kKimi.value_head_dim;
  const std::int64_t of_decay = 2 * rank + (1 + 4 * 4) * width;
  const std::int64_t of_rule =
      3 * 2 * width + 2 * 4 * heads + 4 * width + 2 * heads + 2 * 2 * 64 * heads;
  const std::int64_t of_norm = 2 * rank + 4 * 4 * width + 4 * heads + 2 * width;
  const std::int64_t small = 2 * 4 * heads + 4 * rank;  // decay rates; the norm's weight in fp32
  CHECK(saved_bytes(kimi_linear(), kRow) ==
        kTokens * (3 * 2 * width + of_decay + of_rule + of_norm) + small);
}

TEST_CASE("Mamba-2's function keeps what the input projection makes and the scan's output") {
  const std::int64_t columns =
      2 * kMamba.inner + 2 * kMamba.groups * kMamba.state + kMamba.num_heads;
  const std::int64_t decay_rates = 2 * 4 * kMamba.num_heads;
  CHECK(saved_bytes(bamba(), kRow) ==
        kTokens * (2 * columns + 2 * kMamba.inner + 4 * kMamba.groups) + decay_rates);
}

// A gate without a norm is part of the scan. Falcon-H1 scales what goes in by a number, and what
// comes out by column: the projection's input and both factors of that product are kept.
TEST_CASE("Mamba-2's function keeps no roots where the scan has the gate") {
  const std::int64_t columns =
      2 * kMamba.inner + 2 * kMamba.groups * kMamba.state + kMamba.num_heads;
  const std::int64_t decay_rates = 2 * 4 * kMamba.num_heads;
  const Job job = falcon_h1();
  const auto layers = static_cast<std::int64_t>(job.model.layers.size());
  CHECK(saved_bytes(job, kRow) ==
        layers * (kTokens * (2 * kHidden + 2 * columns + 2 * kMamba.inner) + decay_rates));
}

TEST_CASE("a short convolution by its kernel keeps six tensors of the hidden size") {
  CHECK(saved_bytes(lfm2(), kRow) == 2 * kHidden * kTokens * (3 + 1 + 1 + 1));
}

// Behind the convolution, whose input is the projection's: steps of a low rank and both rows, each
// in fp32 and normed; steps weighted, and steps back from that rank; copies by channel of values,
// both rows and the gate; the scan's output before its gate, and behind it for the projection; a
// state and its decay for each 2,048 tokens; decay rates and their exponentials.
TEST_CASE("Mamba keeps copies of the scan's inputs that lie channels before tokens") {
  const MambaSpec mamba = jamba().model.mamba;
  const std::int64_t chosen = mamba.step_rank + 2 * mamba.state;
  const std::int64_t of_norms = (4 + 2) * chosen + 2 * mamba.step_rank + 3 * 4;
  const std::int64_t of_values = 2 * 2 + 2 + 2 * (1 + 1 + 1 + 1 + 1);
  const std::int64_t carried = 2 * 4 * mamba.inner * mamba.state;
  const std::int64_t small = (2 * 4 * mamba.state + 2 * 4) * mamba.inner;
  CHECK(saved_bytes(jamba(), kRow) ==
        kTokens * (of_values * mamba.inner + of_norms + 2 * 2 * mamba.state) + carried + small);
}

TEST_CASE("kernels keep less than PyTorch's operators, and a step is shorter") {
  for (Job job : {delta_net("qwen3_5_text"), delta_net("qwen3_next"), bamba(), falcon_h1(), jamba(),
                  lfm2()}) {
    CAPTURE(job.model.family);
    job.cluster.host_slowdown = 0.01;  // GPUs alone
    const Job plain = by_operators(job);
    CHECK(saved_bytes(job, kRow) < saved_bytes(plain, kRow));
    const Plan plan = trainer_plan(0);
    if (most_bytes(job, plan, kWayBack, "kernel_tuning") == 0) {
      CHECK(peak_of(job, plan, kWayBack) < peak_of(plain, plan, kWayBack));
    }
    CHECK(estimate_step_time(job, plan).total_s <=
          doctest::Approx(estimate_step_time(plain, plan).total_s));
  }
}

TEST_CASE("what kernels keep grows with tokens alone") {
  for (Job job : {delta_net("qwen3_5_text"), kimi_linear(), bamba(), lfm2()}) {
    CAPTURE(job.model.family);
    const std::int64_t once = saved_bytes(job, kRow);
    job.sequence_length *= 2;
    const std::int64_t twice = saved_bytes(job, kRow);
    job.sequence_length *= 2;
    CHECK(saved_bytes(job, kRow) - twice == 2 * (twice - once));
  }
}

// Triton clears 256 MiB between runs of a kernel that it times, once in a process.
TEST_CASE("mamba_ssm's kernels are tuned where they run first, fla's are not") {
  constexpr std::int64_t kCleared = std::int64_t{256} << 20;
  const Plan plan = trainer_plan(0);
  for (const Job& job : {bamba(), falcon_h1()}) {
    CHECK(most_bytes(job, plan, MomentKind::kForward, "kernel_tuning") == kCleared);
    CHECK(most_bytes(job, plan, kWayBack, "kernel_tuning") == kCleared);
    CHECK(peak_of(job, plan, kWayBack) >= kCleared);
    CHECK(most_bytes(by_operators(job), plan, kWayBack, "kernel_tuning") == 0);
  }
  for (const Job& job : {delta_net("qwen3_5_text"), kimi_linear(), jamba(), lfm2()}) {
    CHECK(most_bytes(job, plan, MomentKind::kForward, "kernel_tuning") == 0);
  }
}

TEST_CASE("weights of Kimi's layers are those that the model counts") {
  const Job job = kimi_linear();
  CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
  CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
}

TEST_CASE("every weight of a mixer has its moments") {
  for (const Job& job : {delta_net("qwen3_5_text"), delta_net("qwen3_next"), kimi_linear(), bamba(),
                         falcon_h1(), jamba(), lfm2()}) {
    CAPTURE(job.model.family);
    const Plan plan = trainer_plan(0);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == idle_bytes(job, plan, "parameters"));
    CHECK(idle_bytes(job, plan, "gradients.of_weights") == 0);
  }
}

std::string refusal(const Job& job) {
  const auto why = why_invalid(job, trainer_plan(0));
  return why ? why->message : "";
}

TEST_CASE("runs that packages do not take, or that were not read, are refused by name") {
  REQUIRE(refusal(kimi_linear()).empty());
  CHECK(refusal(by_operators(kimi_linear())).find("Kimi delta attention") != std::string::npos);
  Job job = bamba();
  REQUIRE(refusal(job).empty());
  job.profile.convolution_kernels = false;
  CHECK(refusal(job).find("causal_conv1d") != std::string::npos);
  job = bamba();
  job.adapters = adapters_on_all(8);
  CHECK(refusal(job).find("out_proj") != std::string::npos);
  job = lfm2();
  job.model.short_convolution.tokens = 5;
  CHECK(refusal(job).find("5 tokens") != std::string::npos);
  job = delta_net("qwen3_5_text");
  job.model.delta.key_head_dim = 512;
  CHECK(refusal(job).find("512 wide") != std::string::npos);
}

TEST_CASE("an estimate says which path it is of") {
  const Job job = delta_net("qwen3_5_text");
  CHECK(huggingface::recurrence_assumption(job).find("by the package fla") != std::string::npos);
  const std::string plain = huggingface::recurrence_assumption(by_operators(job));
  CHECK(plain.find("PyTorch's operators") != std::string::npos);
  CHECK(plain.find("--set mixer_kernels=true") != std::string::npos);
  CHECK(huggingface::recurrence_assumption(lfm2()).find("recurrences") == std::string::npos);
  CHECK(huggingface::recurrence_assumption(bamba()).find("mamba_ssm") != std::string::npos);
}

}  // namespace
}  // namespace shardplan::transformers
