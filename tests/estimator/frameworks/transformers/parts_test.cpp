// What families of before Llama and layers with parts beside attention save of a forward pass,
// counted by hand; and adapters and packed weights on mixers' projections.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 1024;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kQuery = 8 * 64;
constexpr std::int64_t kLayers = 2;

// All in bf16, without autocast.
Job of_family(const char* family) {
  Job job = small_trainer_job(1);
  job.model.family = family;
  job.profile.autocast = false;
  return job;
}

// LayerNorms, biases everywhere and as many heads of keys as of queries.
Job of_older_family(const char* family, Activation activation) {
  Job job = of_family(family);
  ModelSpec& model = job.model;
  model.num_kv_heads = model.num_heads;
  model.layer_norm = true;
  model.gated_ffn = false;
  model.activation = activation;
  model.parallel_ffn = true;
  model.rotary_share = 0.5;
  model.qkv_bias = true;
  model.attention_output_bias = true;
  model.ffn_bias = true;
  return job;
}

Job phi() {
  Job job = of_older_family("phi", Activation::kNewGelu);
  job.model.norms_per_layer = 1;
  job.model.head_bias = true;
  return job;
}

Job gpt_neox() {
  return of_older_family("gpt_neox", Activation::kGelu);
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

Job falcon_h1() {
  Job job = of_family("falcon_h1");
  job.model.mamba = kMamba;
  job.model.mamba.gated_norm = false;
  for (LayerSpec& layer : job.model.layers) { layer.has_mamba_beside = true; }
  return job;
}

constexpr MambaSpec kSelective = {.inner = 256, .state = 16, .convolution = 4, .step_rank = 32};

Job jamba() {
  Job job = of_family("jamba");
  job.model.mamba = kSelective;
  job.model.mamba.inner_norms = true;
  job.model.layers[0].mixer = MixerKind::kMamba1;
  for (LayerSpec& layer : job.model.layers) { layer.has_rotary = false; }
  return job;
}

Job mimo() {
  Job job = of_family("mimo");
  job.model.qkv_bias = true;
  return job;
}

// The product that is activated, half of it, tanh, that and one, and what the last product reads.
TEST_CASE("GELU by operators keeps five tensors of the FFN's width, and one operator two") {
  Job job = phi();
  CHECK(saved_bytes(job, "layer.ffn") == kLayers * 5 * 2 * kFfn * kTokens);
  job.model.activation = Activation::kGelu;
  CHECK(saved_bytes(job, "layer.ffn") == kLayers * 2 * 2 * kFfn * kTokens);
}

// Norms give fp32, which the first product casts. The power's input, tanh and that and one are in
// fp32; half of the input and what the last product reads in bf16.
TEST_CASE("under autocast GELU by operators is in fp32 from its power on") {
  Job job = phi();
  job.profile.autocast = true;
  CHECK(saved_bytes(job, "layer.ffn") ==
        kLayers * kTokens * ((3 * 4 + 2 * 2) * kFfn + 2 * kHidden));
}

// An output each, and two statistics of every row in fp32; the input is the residual stream.
TEST_CASE("attention and FFN side by side keep an output of every norm that they have") {
  const std::int64_t norm = (2 * kHidden + 2 * 4) * kTokens;
  CHECK(saved_bytes(phi(), "layer.norm") == (kLayers + 1) * norm);
  CHECK(saved_bytes(gpt_neox(), "layer.norm") == (2 * kLayers + 1) * norm);
}

// One product of queries, keys and values, of which values are views; turned queries and keys are
// put together anew; the output with heads and with tokens in front; softmax's sums.
TEST_CASE("GPT-NeoX keeps one product of queries, keys and values") {
  const std::int64_t heads = 2 * kQuery * kTokens * (3 + 2 + 2);
  CHECK(saved_bytes(gpt_neox(), "layer.attention") == kLayers * (heads + 4 * 8 * kTokens));
}

// Without a norm the gate is activated in its own type, and what the scan gives is multiplied with
// it: of the norm's 4-byte gate, activation, input and normed value a 2-byte activation is left.
TEST_CASE("a scan without a gated norm keeps fourteen bytes a channel less") {
  Job job = bamba();
  const std::int64_t normed = saved_bytes(job, "layer.recurrence");
  job.model.mamba.gated_norm = false;
  CHECK(normed - saved_bytes(job, "layer.recurrence") ==
        kTokens * (14 * kMamba.inner + 4 * kMamba.groups));
}

// The norm's output is scaled for either mixer, which keep those two; keys and gates are scaled
// before anything keeps them.
TEST_CASE("mixers side by side keep an input of their own each") {
  const Job plain = of_family("llama");
  CHECK(saved_bytes(plain, "layer.norm") - saved_bytes(falcon_h1(), "layer.norm") ==
        kLayers * 2 * kHidden * kTokens);
  CHECK(saved_bytes(falcon_h1(), "layer.residual") - saved_bytes(plain, "layer.residual") ==
        kLayers * 2 * kHidden * kTokens);
  CHECK(saved_bytes(falcon_h1(), "layer.attention") == saved_bytes(plain, "layer.attention"));
  CHECK(saved_bytes(falcon_h1(), "layer.ffn") == saved_bytes(plain, "layer.ffn"));
  Job scans = bamba();
  scans.model.mamba.gated_norm = false;
  CHECK(saved_bytes(falcon_h1(), "layer.recurrence") ==
        kLayers * (saved_bytes(scans, "layer.recurrence") + 2 * kHidden * kTokens));
}

// Fp32 but where products and the stream are in bf16.
TEST_CASE("a selective scan keeps decays, what enters and every state of every channel") {
  const std::int64_t inner = kSelective.inner;
  const std::int64_t state = kSelective.state;
  const std::int64_t rank = kSelective.step_rank;
  // Input and gate, what the convolution gave and that in fp32, softplus's input and output, the
  // gate's activation, the scan's output in fp32 and the product of both.
  const std::int64_t of_channels = 2 * 2 + 2 + 4 + 2 + 2 + 2 + 4 + 2;
  const std::int64_t of_norms = 6 * (rank + 2 * state) + 3 * 4;
  // What the step sizes' product reads, and both rows of states.
  const std::int64_t of_rows = 2 * rank + 4 * state + 2 * state;
  // Decays, what enters before it is multiplied, and states in both types.
  const std::int64_t of_states = 4 + 4 + 4 + 2;
  const std::int64_t by_token =
      of_channels * inner + of_norms + of_rows + of_states * inner * state;
  // The convolution's output; both of the decays' rates; of states the last one is not kept in
  // fp32, and the first one's is given; the skip in fp32.
  const std::int64_t others = 2 * inner * (kTokens + 3) + 2 * 4 * inner * state -
                              4 * inner * state + 2 * inner * state + 4 * inner;
  CHECK(saved_bytes(jamba(), "layer.recurrence") == kTokens * by_token + others);
}

TEST_CASE("weights of older and parallel families are those that their models count") {
  for (const Job& job : {phi(), gpt_neox(), falcon_h1(), bamba(), jamba()}) {
    CAPTURE(job.model.family);
    CHECK(saved_bytes(job, "parameters") == 2 * count_parameters(job.model));
    CHECK(huggingface::model_elements(job.model) == count_parameters(job.model));
  }
}

// Qwen2's layers beside a module of prediction, which counts one layer more and keeps nothing.
TEST_CASE("MiMo's prediction module lies beside the layers and keeps nothing") {
  Job qwen = mimo();
  qwen.model.family = "qwen2";
  ModelSpec with_module = qwen.model;
  with_module.num_mtp_layers = 1;
  CHECK(saved_bytes(mimo(), "parameters") - saved_bytes(qwen, "parameters") ==
        2 * count_mtp_parameters(with_module));
  for (const char* const row : {"layer.norm", "layer.attention", "layer.ffn", "layer.residual"}) {
    CHECK(saved_bytes(mimo(), row) == saved_bytes(qwen, row));
  }
}

std::int64_t adapted(const Job& of_job, const std::initializer_list<LinearLayer> places) {
  Job job = of_job;
  job.adapters.rank = 8;
  for (const LinearLayer place : places) {
    job.adapters.targets.at(static_cast<std::size_t>(place)) = true;
  }
  CHECK(saved_bytes(job, "adapters") == 4 * huggingface::adapter_elements(job));
  return huggingface::adapter_elements(job) / job.adapters.rank;
}

// Inputs and outputs of every adapted product together.
TEST_CASE("adapters stand on the projections of mixers by their names") {
  using enum LinearLayer;
  const std::int64_t channels = 2 * kSmallDelta.key_width() + kSmallDelta.value_width();
  const std::int64_t value = kSmallDelta.value_width();
  CHECK(adapted(small_delta_job("qwen3_5_text"), {kMixerInput}) == kHidden + channels);
  CHECK(adapted(small_delta_job("qwen3_5_text"), {kMixerGate}) == kHidden + value);
  CHECK(adapted(small_delta_job("qwen3_5_text"), {kMixerScalars}) ==
        2 * (kHidden + kSmallDelta.value_heads));
  CHECK(adapted(small_delta_job("qwen3_5_text"), {kMixerOutput}) == value + kHidden);
  CHECK(adapted(small_delta_job("qwen3_next"), {kMixerInput}) == kHidden + channels + value);
  CHECK(adapted(small_delta_job("qwen3_next"), {kMixerScalars}) ==
        kHidden + 2 * kSmallDelta.value_heads);
  const std::int64_t projected =
      2 * (kMamba.inner + kMamba.groups * kMamba.state) + kMamba.num_heads;
  CHECK(adapted(bamba(), {kMixerInput, kMixerOutput}) ==
        kHidden + projected + kMamba.inner + kHidden);
  CHECK(adapted(jamba(), {kMixerScalars}) ==
        2 * (kSelective.inner + kSelective.step_rank) + 2 * kSelective.state);
  CHECK(adapted(falcon_h1(), {kMixerInput}) == kLayers * (kHidden + projected));
}

TEST_CASE("a shared expert's gate is a linear layer with an adapter of its own") {
  Job job = of_family("qwen2_moe");
  job.model.moe = {
      .num_experts = 8, .topk = 2, .expert_ffn = 256, .shared_ffn = 768, .shared_gate = true};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  CHECK(adapted(job, {LinearLayer::kSharedGate}) == kLayers * (kHidden + 1));
}

std::string refusal(const Job& job) {
  const std::optional<InvalidReason> reason = why_invalid(job, trainer_plan(0));
  return reason ? reason->message : "";
}

// peft refuses out_proj of Falcon-H1: named, it is refused; all linear layers leave it out.
TEST_CASE("adapters on outputs of state spaces are refused where peft refuses them") {
  using enum LinearLayer;
  Job job = falcon_h1();
  job.adapters = adapters_on_all(8);
  CHECK(refusal(job).empty());
  const std::int64_t on_all = huggingface::adapter_elements(job);
  job.adapters.targets.at(static_cast<std::size_t>(kMixerOutput)) = false;
  CHECK(refusal(job).empty());
  CHECK(huggingface::adapter_elements(job) == on_all);
  job.adapters.targets.at(static_cast<std::size_t>(kMixerOutput)) = true;
  job.adapters.targets.at(static_cast<std::size_t>(kGate)) = false;
  CHECK(refusal(job).find("out_proj") != std::string::npos);
}

// Half a byte an element and a scale of 4 bytes for 64 of them, and a table of 16 values.
std::int64_t packed_bytes(std::int64_t elements) {
  return elements / 2 + elements / 64 * 4 + 16 * 4;
}

TEST_CASE("mixers' projections and a head are packed as other linear layers are, unless spared") {
  Job job = falcon_h1();
  job.adapters = {.rank = 8, .targets = {true}};
  job.quantized = {.kind = Quantization::kNf4};
  const std::int64_t packed = saved_bytes(job, "parameters.quantized");
  const std::int64_t whole = saved_bytes(job, "parameters");
  const std::int64_t output = kMamba.inner * kHidden;
  job.quantized.spared.at(static_cast<std::size_t>(LinearLayer::kMixerOutput)) = true;
  CHECK(packed - saved_bytes(job, "parameters.quantized") == kLayers * packed_bytes(output));
  CHECK(saved_bytes(job, "parameters") - whole == kLayers * 2 * output);
  job.quantized.spared = {};
  job.quantized.takes_head = true;
  CHECK(saved_bytes(job, "parameters.quantized") - packed == packed_bytes(kVocab * kHidden));
  CHECK(whole - saved_bytes(job, "parameters") == 2 * kVocab * kHidden);
}

TEST_CASE("losses that read the head's weight are refused with its bias") {
  Job job = phi();
  CHECK(refusal(job).empty());
  job.profile.head_loss = HeadLoss::kCutCrossEntropy;
  CHECK(refusal(job).find("bias") != std::string::npos);
}

}  // namespace
}  // namespace shardplan::transformers
