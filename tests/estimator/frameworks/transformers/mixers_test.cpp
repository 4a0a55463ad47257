// What newer families save of a forward pass, counted by hand: their norms, activations, attention
// with sinks, and mixers without scores.
#include <doctest/doctest.h>

#include <string>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 1024;
constexpr std::int64_t kQuery = 8 * 64;
constexpr std::int64_t kKey = 4 * 64;
constexpr std::int64_t kLayers = 2;

Job of_family(const char* family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  return job;
}

Job olmo2() {
  Job job = of_family("olmo2");
  job.model.qk_norm = true;
  job.model.norms_all_heads = true;
  job.model.norms_after = true;
  return job;
}

Job cohere() {
  Job job = of_family("cohere");
  job.model.layer_norm = true;
  job.model.norm_bias = false;
  job.model.norms_per_layer = 1;
  job.model.parallel_ffn = true;
  job.model.tied_embeddings = true;
  return job;
}

Job with_plain_ffn(const char* family, Activation activation) {
  Job job = of_family(family);
  job.model.gated_ffn = false;
  job.model.activation = activation;
  return job;
}

Job gpt_oss() {
  Job job = of_family("gpt_oss");
  job.model.activation = Activation::kClampedSwiglu;
  job.model.qkv_bias = true;
  job.model.attention_output_bias = true;
  job.model.moe = {.num_experts = 8,
                   .topk = 2,
                   .expert_ffn = 256,
                   .biased_router = true,
                   .biased_experts = true};
  for (LayerSpec& layer : job.model.layers) {
    layer.is_moe = true;
    layer.has_sinks = true;
  }
  return job;
}

Job lfm2() {
  Job job = of_family("lfm2");
  job.model.qk_norm = true;
  job.model.short_convolution = {.tokens = 3, .has_bias = false};
  job.model.layers[0].mixer = MixerKind::kShortConvolution;
  return job;
}

constexpr MambaSpec kMamba = {.num_heads = 8,
                              .head_dim = 32,
                              .inner = 256,
                              .state = 16,
                              .groups = 2,
                              .convolution = 4,
                              .chunk = 64};

Job bamba() {
  Job job = of_family("bamba");
  job.model.mamba = kMamba;
  job.model.layers[0].mixer = MixerKind::kMamba2;
  return job;
}

// A mixer, attention and an FFN, each a layer.
Job nemotron_h() {
  Job job = with_plain_ffn("nemotron_h", Activation::kReluSquared);
  job.model.mamba = kMamba;
  job.model.norms_per_layer = 1;
  job.model.layers.resize(3);
  for (LayerSpec& layer : job.model.layers) { layer.has_rotary = false; }
  job.model.layers[0].mixer = MixerKind::kMamba2;
  job.model.layers[0].has_ffn = false;
  job.model.layers[1].has_ffn = false;
  job.model.layers[2].mixer = MixerKind::kNone;
  return job;
}

// Of each a root a row, the input and the normed value in fp32; outputs are added, that of the last
// norm alone is multiplied.
TEST_CASE("OLMo's norms multiply in fp32, and those of queries and keys are of whole rows") {
  const auto norm = [](std::int64_t width) { return (8 * width + 4) * kTokens; };
  CHECK(saved_bytes(olmo2(), "layer.norm") ==
        kLayers * (2 * norm(kHidden) + norm(kQuery) + norm(kKey)) + norm(kHidden) +
            2 * kHidden * kTokens);
}

// Both differences from the mean and the normed value in fp32, a root a row, the weight in fp32;
// the output is that of both attention and FFN.
TEST_CASE("Cohere's layers have one norm, whose differences are kept twice") {
  const std::int64_t norm = (12 * kHidden + 4) * kTokens + 4 * kHidden;
  CHECK(saved_bytes(cohere(), "layer.norm") == (kLayers + 1) * (norm + 2 * kHidden * kTokens));
}

// What relu made of the product, the same in fp32 for autocast's square, and the square in bf16.
TEST_CASE("a squared ReLU keeps what it squares in both types") {
  const Job job = with_plain_ffn("arcee", Activation::kReluSquared);
  CHECK(saved_bytes(job, "layer.ffn") == kLayers * (2 + 4 + 2) * kFfn * kTokens);
}

TEST_CASE("gelu without a gate keeps its input and its output") {
  const Job job = with_plain_ffn("llama", Activation::kGelu);
  CHECK(saved_bytes(job, "layer.ffn") == kLayers * (2 + 2) * kFfn * kTokens);
}

// Softmax in fp32 and its copy in bf16 against softmax in bf16 with one column more; the place of
// every row's largest score.
TEST_CASE("sinks widen the scores by a column and keep where the largest are") {
  Job job = gpt_oss();
  const std::int64_t with_sinks = saved_bytes(job, "layer.attention");
  for (LayerSpec& layer : job.model.layers) { layer.has_sinks = false; }
  job.profile.attention_backend = AttentionBackend::kUnfused;
  const std::int64_t rows = 8 * kTokens;
  CHECK(saved_bytes(job, "layer.attention") - with_sinks ==
        kLayers * (4 * rows * kTokens - (2 + 8) * rows));
}

// FlashAttention 3 saves queries, keys, values, its output and sums of rows; gradients in fp32 of
// queries, keys and values, and two numbers of every row, behind which a tile of 128 rows stands.
TEST_CASE("FlashAttention with sinks keeps no scores, and trains none of its sinks") {
  Job job = gpt_oss();
  job.profile.attention_backend = AttentionBackend::kFlash;
  const std::int64_t with_sinks = saved_bytes(job, "layer.attention");
  Job plain = job;
  for (LayerSpec& layer : plain.model.layers) { layer.has_sinks = false; }
  CHECK(saved_bytes(plain, "layer.attention") >= with_sinks);
  CHECK(with_sinks >= kLayers * kTokens * (2 * 64 * (8 + 4 + 4 + 8) + 4 * 8));
  CHECK(most_bytes(job, trainer_plan(0), MomentKind::kLossBackward, "layer.attention_gradients") >=
        4 * (kTokens + 128) * (64 * (8 + 4 + 4) + 2 * 8));
  CHECK(why_invalid(job, trainer_plan(0)) == std::nullopt);
  Job two = job;
  two.cluster.nodes = 1;
  two.cluster.gpus_per_node = 2;
  two.global_batch = 2;
  Plan ddp = trainer_plan(0);
  ddp.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  CHECK(why_invalid(two, ddp)->rule == "ddp_looks_for_parameters_without_gradients");
  CHECK(why_invalid(two, trainer_plan(3)) == std::nullopt);
}

// Gate and up as one, behind a mask; both bounded, the sigmoid and its product, up and one; the
// product of both, and the output, masked.
TEST_CASE("clamped SwiGLU keeps five tensors of the width of an expert beside its product") {
  Job job = gpt_oss();
  const std::int64_t clamped = saved_bytes(job, "layer.ffn");
  job.model.activation = Activation::kSilu;
  const std::int64_t rows = kTokens * 2;
  // Silu keeps its activation beside gate and up.
  CHECK(clamped - saved_bytes(job, "layer.ffn") == kLayers * 2 * rows * 256 * (4 - 1));
}

// Bytes of fp32 and of bf16 for each token and element of keys as wide as value heads, of values,
// of channels, of pairs of tokens in a chunk, and of heads; T tokens in n chunks.
TEST_CASE("a delta net keeps chunks in fp32, what products read of them in bf16, and states") {
  const std::int64_t heads = kSmallDelta.value_heads;
  const std::int64_t key = heads * kSmallDelta.key_head_dim;
  const std::int64_t value = kSmallDelta.value_width();
  const std::int64_t channels = 2 * kSmallDelta.key_width() + value;
  const std::int64_t chunks = kTokens / 64;
  const std::int64_t state = 32 * value;
  // Queries and keys, both padded, rated keys and those that the triangular system gave; casts of
  // all but the first two, of keys twice.
  const std::int64_t of_keys = 6 * 4 + 4 * 2;
  // Padded values and those that the system gave; the output in fp32, normed and weighted in bf16,
  // the gate and its activation in fp32; their product.
  const std::int64_t of_values = 2 * 4 + 4 + 2 * 2 + 2 * 4 + 2;
  // Both products in bf16, the decays, the system, and attention within chunks in bf16.
  const std::int64_t of_pairs = 2 * 2 + 4 + 4 + 2;
  // Both sums of squares, the rate in bf16 and padded in fp32, softplus and its input, three
  // exponentials of decays, and the norm's root.
  const std::int64_t of_heads = 2 * 4 + 2 + 4 + 2 * 4 + 3 * 4 + 4;
  const std::int64_t by_token =
      kTokens * (of_keys * key + of_values * value + of_pairs * 64 * heads + of_heads * heads);
  // A chunk's values are cast for what is within it; what the first one reads of keys and queries,
  // and what the last one leaves to no other, is not kept.
  const std::int64_t by_chunk = chunks * 2 * 64 * value +
                                (chunks - 1) * 64 * (3 * 2 * key + 2 * value) +
                                chunks * 2 * 2 * state + (chunks - 1) * 4 * state;
  const std::int64_t convolution = 2 * channels * (kTokens + kTokens + 3);
  const std::int64_t small = 64 * 64 + 4 * heads * chunks + 2 * 4 * heads;
  CHECK(saved_bytes(small_delta_job("qwen3_5_text"), "layer.recurrence") ==
        by_token + by_chunk + convolution + small);
}

// In fp32 between the convolution and the output, which alone are in bf16.
TEST_CASE("Mamba-2's scan keeps factors of its products, but none of what it makes whole") {
  const std::int64_t heads = kMamba.num_heads;
  const std::int64_t inner = kMamba.inner;
  const std::int64_t channels = inner + 2 * kMamba.groups * kMamba.state;
  const std::int64_t chunks = kTokens / kMamba.chunk;
  // Values, padded, and times their steps; what states add; the gate, its activation, what it
  // multiplies and their product, and that normed; the output in bf16.
  const std::int64_t of_values = 9 * 4 + 2;
  // Inputs of softplus, its output, that bounded, and two exponentials of decays.
  const std::int64_t of_heads = 5 * 4;
  // Both rows of states for every head, and one of them decayed.
  const std::int64_t of_states = 3 * 4 * kMamba.state * heads;
  // Decays between two tokens of a chunk, their scores, and these weighted.
  const std::int64_t of_pairs = 3 * 4 * kMamba.chunk * heads;
  const std::int64_t by_token =
      kTokens * (of_values * inner + of_heads * heads + of_states + of_pairs + 4 * kMamba.groups);
  const std::int64_t projected =
      2 * kTokens * (inner + channels + heads) + 2 * channels * (kTokens + 3);
  // States of chunks and one before them, before and behind their decays.
  const std::int64_t states = 2 * 4 * (chunks + 1) * inner * kMamba.state;
  const std::int64_t small = 2 * 4 * heads + 2 * kMamba.chunk * kMamba.chunk +
                             (2 + 4 * heads) * (chunks + 1) * (chunks + 1);
  CHECK(saved_bytes(bamba(), "layer.recurrence") == by_token + projected + states + small);
}

TEST_CASE("a layer of a mixer or an FFN alone has one norm and one addition") {
  const std::int64_t norm = (6 * kHidden + 4) * kTokens;
  CHECK(saved_bytes(nemotron_h(), "layer.norm") == 4 * (norm + 2 * kHidden * kTokens));
  CHECK(saved_bytes(nemotron_h(), "rotary_embedding") == 0);
}

// Both gates and what is convolved, its product with a gate, the convolution's output with two
// tokens more, and the product of that with the other gate.
TEST_CASE("a short convolution keeps seven tensors of the hidden size") {
  CHECK(saved_bytes(lfm2(), "layer.recurrence") == 2 * kHidden * ((3 + 1 + 1 + 1) * kTokens + 2));
}

TEST_CASE("attention with a gate keeps the gate's copy and what it multiplies") {
  Job job = small_delta_job("qwen3_5_text");
  const std::int64_t gated = saved_bytes(job, "layer.attention");
  job.model.attention_gate = AttentionGate::kNone;
  // The sigmoid, and the product beside the output; the output's copy with tokens in front is the
  // product's factor.
  CHECK(gated - saved_bytes(job, "layer.attention") == 2 * 2 * kQuery * kTokens);
}

TEST_CASE("weights of newer families are those that their models count") {
  Job stablelm = of_family("stablelm");
  stablelm.model.layer_norm = true;
  for (const Job& job :
       {olmo2(), cohere(), stablelm, with_plain_ffn("arcee", Activation::kReluSquared),
        with_plain_ffn("apertus", Activation::kXielu), gpt_oss(), small_delta_job("qwen3_5_text"),
        small_delta_job("qwen3_next"), lfm2(), bamba(), nemotron_h()}) {
    CAPTURE(job.model.family);
    CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
  }
}

}  // namespace
}  // namespace shardplan::transformers
