// What families with experts save of a forward pass beside what Mixtral's and Qwen's save, counted
// by hand.
#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kQuery = 8 * 64;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kChosen = 2;
constexpr std::int64_t kRows = kChosen * kTokens;

Job with_experts(const char* family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.model.moe = {.num_experts = kExperts, .topk = kChosen, .expert_ffn = 256, .shared_ffn = 128};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

Job afmoe() {
  Job job = with_experts("afmoe");
  job.model.qk_norm = true;
  job.model.attention_gate = AttentionGate::kPerElement;
  job.model.norms_per_layer = 4;
  return job;
}

Job mistral4() {
  Job job = with_experts("mistral4");
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 128,
                   .kv_lora_rank = 64,
                   .qk_nope_head_dim = 32,
                   .qk_rope_head_dim = 32,
                   .v_head_dim = 64};
  job.model.num_kv_heads = job.model.num_heads;
  return job;
}

Job nemotron() {
  Job job = with_experts("nemotron_h");
  job.model.gated_ffn = false;
  job.model.activation = Activation::kReluSquared;
  job.model.norms_per_layer = 1;
  job.model.layers[0] = {.has_ffn = false, .has_rotary = false};
  job.model.layers[1] = {.is_moe = true, .mixer = MixerKind::kNone, .has_rotary = false};
  return job;
}

// The sigmoid, and its product with the output, which the output projection reads.
TEST_CASE("a gate with a projection of its own keeps its sigmoid and what it multiplies") {
  Job job = afmoe();
  const std::int64_t gated = saved_bytes(job, "layer.attention");
  job.model.attention_gate = AttentionGate::kNone;
  CHECK(gated - saved_bytes(job, "layer.attention") == kLayers * 2 * 2 * kQuery * kTokens);
}

// The input in fp32, a root a row and the normed value in fp32; outputs that are read by products
// in bf16, and those of queries' and keys' norms, which turning leaves behind.
TEST_CASE("AFMoE's norms multiply in fp32, four in a layer") {
  const std::int64_t norm = (8 * kHidden + 4) * kTokens;
  const std::int64_t heads = (8 * 64 + 4) * (8 + 4) * kTokens;
  const std::int64_t output = 2 * kHidden * kTokens;
  CHECK(saved_bytes(afmoe(), "layer.norm") ==
        kLayers * (4 * norm + 2 * output + heads) + norm + output);
}

// Autocast has softmax in fp32: its result, the chosen weights' places and what scales them.
TEST_CASE("Mistral 4's router has softmax of scores in their own type") {
  Job narrow = mistral4();
  Job wide = mistral4();
  wide.model.family = "deepseek_v2";
  narrow.profile.autocast = false;
  wide.profile.autocast = false;
  // DeepSeek-V2's casts its input to fp32, and its scores are of fp32.
  const std::int64_t cast = 4 * kHidden * kTokens;
  const std::int64_t scores = (4 - 2) * kExperts * kTokens;
  const std::int64_t weights = (4 - 2) * kRows;
  const std::int64_t router = 4 * kExperts * kHidden;
  CHECK(saved_bytes(wide, "layer.ffn") - saved_bytes(narrow, "layer.ffn") ==
        kLayers * (cast + scores + weights + router));
}

// Of every row of a chosen expert what it reads and what it gives are of the latent width; what all
// give is kept for the projection back.
TEST_CASE("experts of projected tokens keep rows of the latent width") {
  Job job = nemotron();
  const std::int64_t whole = saved_bytes(job, "layer.ffn");
  job.model.moe.latent = 192;
  CHECK(whole - saved_bytes(job, "layer.ffn") ==
        2 * 2 * kRows * (kHidden - 192) - 2 * 192 * kTokens);
}

TEST_CASE("weights of families with experts are those that their models count") {
  Job latent = nemotron();
  latent.model.moe.latent = 192;
  for (const Job& job : {afmoe(), mistral4(), nemotron(), latent}) {
    CAPTURE(job.model.family);
    CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
  }
}

TEST_CASE("adapters stand on gates and on projections around experts") {
  const auto adapted = [](Job job, LinearLayer place) {
    job.adapters.rank = 1;
    job.adapters.targets.fill(false);
    job.adapters.targets[static_cast<std::size_t>(place)] = true;
    return huggingface::adapter_elements(job);
  };
  CHECK(adapted(afmoe(), LinearLayer::kGate) == kLayers * (kHidden + kQuery + kHidden + 128));
  Job latent = nemotron();
  latent.model.moe.latent = 192;
  CHECK(adapted(latent, LinearLayer::kLatent) == 2 * (kHidden + 192));
}

}  // namespace
}  // namespace shardplan::transformers
