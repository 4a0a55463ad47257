// Layers that Megatron-LM has beside those of a GPT decoder, from its arguments: the parameters are
// those of published checkpoints.
#include "data/arguments/arguments.h"
#include "data/arguments/run_settings.h"
#include "data/read/case_line.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/plan/parameters.h"
#include "tests/data/message_of.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace shardplan {
namespace {

constexpr std::string_view kTraining = R"("--seq-length": 4096, "--max-position-embeddings": 4096,
  "--micro-batch-size": 1, "--global-batch-size": 8, "--bf16": true,
  "--tokenizer-type": "NullTokenizer", "--transformer-impl": "transformer_engine",
  "--use-distributed-optimizer": true, "--untie-embeddings-and-output-weights": true,
  "--position-embedding-type": "rope", "--normalization": "RMSNorm", "--hidden-dropout": 0,
  "--attention-dropout": 0, "--group-query-attention": true, "--moe-grouped-gemm": true,
  "--moe-token-dispatcher-type": "alltoall", "--expert-model-parallel-size": 8)";

// openai/gpt-oss-20b, as Megatron-Bridge builds it (models/gpt_oss/gpt_oss_bridge.py).
constexpr std::string_view kGptOss = R"("--num-layers": 24, "--hidden-size": 2880,
  "--num-attention-heads": 64, "--num-query-groups": 8, "--kv-channels": 64,
  "--ffn-hidden-size": 2880, "--padded-vocab-size": 201088, "--num-experts": 32,
  "--moe-router-topk": 4, "--quick-geglu": true, "--glu-linear-offset": 1,
  "--activation-func-clamp-value": 7, "--no-bias-dropout-fusion": true, "--window-size": "127,0",
  "--window-attn-skip-freq": 2, "--softmax-type": "learnable")";

// Qwen/Qwen3-Next-80B-A3B.
constexpr std::string_view kQwen3Next = R"("--num-layers": 48, "--hidden-size": 2048,
  "--num-attention-heads": 16, "--num-query-groups": 2, "--kv-channels": 256,
  "--ffn-hidden-size": 5120, "--padded-vocab-size": 151936, "--swiglu": true,
  "--disable-bias-linear": true, "--qk-layernorm": true, "--apply-layernorm-1p": true,
  "--num-experts": 512, "--moe-router-topk": 10, "--moe-ffn-hidden-size": 512,
  "--moe-shared-expert-intermediate-size": 512, "--moe-shared-expert-gate": true,
  "--attention-output-gate": true, "--experimental-attention-variant": "gated_delta_net",
  "--linear-attention-freq": 4)";

RunReading reading_of(std::string_view model, const std::string& more = "") {
  const Library library;
  const std::string text = R"({"arguments": {)" + std::string(model) + ", " +
                           std::string(kTraining) + more + R"(}, "environment": {}})";
  const JsonValue value = parse_json(text, "run.json");
  return read_run(run_settings(value, "run.json"), library.cluster("1x8-h200"), library);
}

// Without an argument whose value has no comma, and the comma before it.
std::string without(std::string_view model, const std::string& argument) {
  std::string text(model);
  const std::size_t at = text.find("\"" + argument + "\"");
  const std::size_t from = text.rfind(',', at);
  const std::size_t to = text.find(',', at);
  return text.erase(from, to == std::string::npos ? to : to - from);
}

TEST_CASE(
    "arguments of gpt-oss become its layers: windows by turns, sinks, biases, a bounded gate") {
  const RunReading run = reading_of(kGptOss);
  const ModelSpec& model = run.job.model;
  CHECK(count_parameters(model) == 20'914'757'184);
  CHECK(model.layers[0].attention_window == 128);
  CHECK(model.layers[1].attention_window == 0);
  CHECK(std::ranges::all_of(model.layers, &LayerSpec::has_sinks));
  CHECK(model.activation == Activation::kClampedSwiglu);
  CHECK(model.moe.biased_experts);
  CHECK(run.unsupported.empty());
  CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
}

TEST_CASE("quick_geglu is fused where its linear layers have biases, unless it is asked not to") {
  CHECK(reading_of(kGptOss).job.profile.swiglu == SwigluKind::kFused);
  CHECK(reading_of(kGptOss, R"(, "--no-bias-gelu-fusion": true)").job.profile.swiglu ==
        SwigluKind::kUnfused);
  CHECK(reading_of(kGptOss, R"(, "--disable-bias-linear": true)").job.profile.swiglu ==
        SwigluKind::kUnfused);
}

TEST_CASE("arguments of Qwen3-Next become delta nets with gated attention in every fourth layer") {
  const RunReading run = reading_of(kQwen3Next);
  const ModelSpec& model = run.job.model;
  CHECK(count_parameters(model) == 79'674'391'296);
  CHECK(model.layers[0].mixer == MixerKind::kGatedDelta);
  CHECK(model.layers[3].mixer == MixerKind::kAttention);
  CHECK(model.attention_gate == AttentionGate::kPerElement);
  CHECK(run.unsupported.empty());
  CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
}

TEST_CASE("a last layer that no whole period ends in is marked as its number says") {
  const RunReading run = reading_of(std::string(kQwen3Next).replace(kQwen3Next.find("48"), 2, "6"));
  const std::vector<LayerSpec>& layers = run.job.model.layers;
  CHECK(layers[3].mixer == MixerKind::kAttention);
  CHECK(layers[4].mixer == MixerKind::kGatedDelta);
  CHECK(layers[5].mixer == MixerKind::kGatedDelta);
}

TEST_CASE("layers that are not counted are refused by what they are") {
  CHECK(reading_of(kGptOss, R"(, "--experimental-attention-variant": "dsa")").unsupported ==
        "unsupported: --experimental-attention-variant dsa: an attention that is not counted; "
        "gated_delta_net is");
  CHECK(reading_of(without(kGptOss, "--softmax-type"), R"(, "--softmax-type": "off-by-one")")
            .unsupported ==
        "unsupported: --softmax-type off-by-one: another softmax than vanilla or learnable");
  CHECK(reading_of(kGptOss, R"(, "--hybrid-layer-pattern": "M*M-")")
            .unsupported.find("a hybrid model of core_v0.17.0 and later") != std::string::npos);
  CHECK(message_of([] { reading_of(without(kQwen3Next, "--linear-attention-freq")); })
            .find("--linear-attention-freq: found nothing, expected which layers are gated delta "
                  "nets") != std::string::npos);
}

}  // namespace
}  // namespace shardplan
