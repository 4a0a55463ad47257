// What families of models save of a forward pass beside what Llama's saves, counted by hand.
#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kHeadDim = 64;

Job gemma2() {
  Job job = small_trainer_job(1);
  job.model.family = "gemma2";
  job.model.norms_per_layer = 4;
  job.model.tied_embeddings = true;
  return job;
}

// A norm saves its input in fp32, the root of every row, the normed value and 1 + weight in fp32;
// norms in front of products and the last one leave an output in bf16 as well.
TEST_CASE("Gemma's four norms save fp32, and an output only where a product reads it") {
  const std::int64_t norm = 8 * kHidden * kTokens + 4 * kTokens + 4 * kHidden;
  const std::int64_t output = 2 * kHidden * kTokens;
  CHECK(saved_bytes(gemma2(), "layer.norm") == 2 * (4 * norm + 2 * output) + norm + output);
}

// Llama's save the normed value in bf16, in front of its product with the weight.
TEST_CASE("Llama's norms save the normed value in the type of the stream") {
  const std::int64_t norm = 6 * kHidden * kTokens + 4 * kTokens;
  const std::int64_t output = 2 * kHidden * kTokens;
  CHECK(saved_bytes(small_trainer_job(1), "layer.norm") == 5 * (norm + output));
}

TEST_CASE("capped logits keep what tanh made of them") {
  Job job = gemma2();
  const std::int64_t uncapped = trainer_bytes_at(job, MomentKind::kLossBackward, "head.logits");
  job.model.caps_logits = true;
  CHECK(trainer_bytes_at(job, MomentKind::kLossBackward, "head.logits") ==
        uncapped + 2 * kVocab * kTokens);
}

// Eager attention caps its scores, 8 heads of 512 * 512 in bf16, which tanh saves.
TEST_CASE("capped scores are kept where attention is eager, and left out where it is not") {
  Job job = gemma2();
  const std::int64_t fused = saved_bytes(job, "layer.attention");
  job.model.caps_scores = true;
  CHECK(saved_bytes(job, "layer.attention") == fused);
  job.profile.attention_backend = AttentionBackend::kUnfused;
  const std::int64_t capped = saved_bytes(job, "layer.attention");
  job.model.caps_scores = false;
  CHECK(capped == saved_bytes(job, "layer.attention") + 2 * 2 * 8 * kTokens * kTokens);
}

// A layer with a window saves a mask in bf16, and keys and values of 8 heads in place of 4.
TEST_CASE("only layers with a window have a mask") {
  Job job = gemma2();
  const std::int64_t causal = saved_bytes(job, "layer.attention");
  const std::int64_t masked = 2 * kTokens * kTokens + 2 * 2 * (8 - 4) * kHeadDim * kTokens;
  job.model.layers[0].attention_window = 256;
  CHECK(saved_bytes(job, "layer.attention") == causal + masked);
  job.model.layers[1].attention_window = 256;
  CHECK(saved_bytes(job, "layer.attention") == causal + 2 * masked);
  for (LayerSpec& layer : job.model.layers) { layer.attention_window = 513; }
  CHECK(saved_bytes(job, "layer.attention") == causal);
}

TEST_CASE("Gemma 3 has cosines and sines for either kind of layer") {
  Job job = gemma2();
  job.model.layers[0].attention_window = 256;
  const std::int64_t pair = 2 * 2 * kTokens * kHeadDim;
  CHECK(saved_bytes(job, "rotary_embedding") == pair);
  job.model.family = "gemma3_text";
  CHECK(saved_bytes(job, "rotary_embedding") == 2 * pair);
}

Job with_experts(std::string_view family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 256};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

// Queries of 48 + 16 = 64 elements by way of 192, keys and values of 48 and 32 by way of 128.
Job with_latent_attention() {
  Job job = small_trainer_job(1);
  job.model.family = "deepseek_v3";
  job.model.attention = AttentionKind::kMla;
  job.model.num_kv_heads = 8;
  job.model.mla = {.q_lora_rank = 192,
                   .kv_lora_rank = 128,
                   .qk_nope_head_dim = 48,
                   .qk_rope_head_dim = 16,
                   .v_head_dim = 32};
  return job;
}

// Gate, its activation, up and their product; the output, which the gate's sigmoid multiplies.
TEST_CASE("a weighted shared expert saves an FFN and its output beside the routed experts") {
  Job job = with_experts("qwen2_moe");
  const std::int64_t routed = saved_bytes(job, "layer.ffn");
  job.model.moe.shared_ffn = 768;
  job.model.moe.shared_gate = true;
  const std::int64_t shared = 2 * kTokens * (4 * 768 + kHidden + 1);
  CHECK(saved_bytes(job, "layer.ffn") == routed + 2 * shared);
  job.model.moe.shared_gate = false;
  CHECK(saved_bytes(job, "layer.ffn") == routed + 2 * 2 * kTokens * 4 * 768);
}

// Queries and keys of 64 elements a head, the product of keys and values of 48 + 32, of which
// values are views, the output of 32 with heads in front and its copy with tokens in front, and
// softmax's sums.
TEST_CASE("latent attention saves whole heads, and its output twice") {
  const std::int64_t heads = 8 * kTokens;
  CHECK(saved_bytes(with_latent_attention(), "layer.attention") ==
        2 * heads * (2 * (2 * 64 + 48 + 32 + 2 * 32) + 4));
}

// One product of 8 + 2 * 4 heads, of which values are views; turned queries and keys are put
// together anew; gate and up as one, the activation and the product.
TEST_CASE("Phi-3's layers have one product in front of attention, and one of the FFN") {
  Job job = small_trainer_job(1);
  job.model.family = "phi3";
  const std::int64_t heads = 2 * kHeadDim * kTokens * ((8 + 2 * 4) + (8 + 4) + 2 * 8);
  CHECK(saved_bytes(job, "layer.attention") == 2 * (heads + 4 * 8 * kTokens));
  CHECK(saved_bytes(job, "layer.ffn") == 2 * 2 * kTokens * 4 * 1024);
}

TEST_CASE("residual dropout keeps a byte for each element that it may drop") {
  Job job = small_trainer_job(1);
  const std::int64_t without = saved_bytes(job, "layer.residual");
  job.model.family = "seed_oss";
  CHECK(saved_bytes(job, "layer.residual") == without + 2 * 2 * kHidden * kTokens);
}

TEST_CASE("the first product with a bias has a workspace of its own in either thread") {
  Job job = small_trainer_job(1);
  const auto workspaces = [](const Job& of_job) { return saved_bytes(of_job, "cublas_workspace"); };
  const std::int64_t plain = workspaces(job);
  job.model.qkv_bias = true;
  CHECK(workspaces(job) == plain + (1 << 20));
}

// Of rank 8, twice as much for gate and up together: A [r*E, in] and B [out, r*E].
TEST_CASE("adapters of experts hold the adapted weights until they are read in backward") {
  Job job = with_experts("deepseek_v3");
  const std::int64_t frozen = [&] {
    job.adapters = {.rank = 8, .targets = {true, true, true, true}};
    return saved_bytes(job, "layer.ffn");
  }();
  const std::int64_t on_attention = saved_bytes(job, "adapters");
  job.adapters = adapters_on_all(8);
  job.adapters.expert_targets = ExpertTargets::kFfnNames;
  const std::int64_t factors = 8 * (2 * 8 * (512 + 2 * 256) + 8 * (256 + 512));
  CHECK(saved_bytes(job, "adapters") == on_attention + 2 * 4 * factors);
  // Both weights and the factors of both in bf16; rows that the weights' gradients want.
  const std::int64_t weights = 8 * 3 * 256 * kHidden;
  const std::int64_t rows = 2 * kTokens * (kHidden + 256);
  CHECK(saved_bytes(job, "layer.ffn") >= frozen + 2 * 2 * (weights + factors));
  CHECK(saved_bytes(job, "layer.ffn") <= frozen + 2 * 2 * (weights + factors + rows));
}

std::int64_t elements_on(std::string_view family, const Adapters& adapters) {
  Job job = with_experts(family);
  job.adapters = adapters;
  return huggingface::adapter_elements(job);
}

// Mixtures without an FFN beside their experts. Mixtral's have names of their own, w1, w2 and w3;
// Qwen2's experts are left alone whatever is named.
TEST_CASE("names of an FFN put adapters on experts, a list of linear layers does not") {
  Adapters adapters = adapters_on_all(8);
  const std::int64_t on_attention = 2 * 8 * (4 * 512 + 2 * 256 + 2 * 512);
  for (const char* const family : {"olmoe", "qwen3_moe", "mixtral", "qwen2_moe", "glm4_moe"}) {
    CAPTURE(family);
    CHECK(elements_on(family, adapters) == on_attention);
  }
  adapters.expert_targets = ExpertTargets::kFfnNames;
  const std::int64_t on_experts = 2 * 8 * (2 * 8 * (512 + 2 * 256) + 8 * (256 + 512));
  CHECK(elements_on("olmoe", adapters) == on_attention + on_experts);
  CHECK(elements_on("qwen3_moe", adapters) == on_attention + on_experts);
  CHECK(elements_on("mixtral", adapters) == on_attention);
  adapters.expert_targets = ExpertTargets::kAllLinear;
  const std::int64_t on_routers = 2 * 8 * (512 + 8);
  CHECK(elements_on("olmoe", adapters) == on_attention + on_experts + on_routers);
  CHECK(elements_on("mixtral", adapters) == on_attention + on_experts + on_routers);
  CHECK(elements_on("qwen2_moe", adapters) == on_attention);
}

TEST_CASE("what a play has of adapters is what is counted of them") {
  for (const ExpertTargets targets :
       {ExpertTargets::kNone, ExpertTargets::kFfnNames, ExpertTargets::kAllLinear}) {
    Job job = with_experts("qwen3_moe");
    job.adapters = adapters_on_all(8);
    job.adapters.expert_targets = targets;
    CHECK(saved_bytes(job, "adapters") == 4 * huggingface::adapter_elements(job));
  }
}

TEST_CASE("weights of every family are those that its model counts") {
  Job experts = with_experts("qwen2_moe");
  experts.model.moe.shared_ffn = 768;
  experts.model.moe.shared_gate = true;
  Job phi = small_trainer_job(1);
  phi.model.family = "phi3";
  for (const Job& job : {gemma2(), experts, with_latent_attention(), phi}) {
    CAPTURE(job.model.family);
    CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
  }
}

}  // namespace
}  // namespace shardplan::transformers
