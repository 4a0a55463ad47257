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

// Latent attention has no groups of queries.
RunReading reading_without_groups(std::string_view model) {
  const Library library;
  std::string training(kTraining);
  const std::string groups = "\"--group-query-attention\": true, ";
  training.erase(training.find(groups), groups.size());
  const JsonValue value = parse_json(
      R"({"arguments": {)" + std::string(model) + ", " + training + R"(}, "environment": {}})",
      "run.json");
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
  CHECK(reading_of(kGptOss, R"(, "--experimental-attention-variant": "dms")").unsupported ==
        "unsupported: --experimental-attention-variant dms: an attention that is not counted; "
        "gated_delta_net and dsa are");
  CHECK(message_of([] {
          reading_of(kGptOss, R"(, "--experimental-attention-variant": "dsa")");
        }).find("found dsa, expected --multi-latent-attention beside it") != std::string::npos);
  CHECK(reading_of(without(kGptOss, "--softmax-type"), R"(, "--softmax-type": "off-by-one")")
            .unsupported ==
        "unsupported: --softmax-type off-by-one: another softmax than vanilla or learnable");
  CHECK(message_of([] { reading_of(without(kQwen3Next, "--linear-attention-freq")); })
            .find("--linear-attention-freq: found nothing, expected which layers are gated delta "
                  "nets") != std::string::npos);
}

// deepseek-ai/DeepSeek-V3.2 with five layers of 61.
constexpr std::string_view kSparse = R"("--num-layers": 5, "--hidden-size": 7168,
  "--num-attention-heads": 128, "--ffn-hidden-size": 18432, "--padded-vocab-size": 129280,
  "--swiglu": true, "--disable-bias-linear": true, "--multi-latent-attention": true,
  "--q-lora-rank": 1536, "--kv-lora-rank": 512, "--qk-head-dim": 128, "--qk-pos-emb-head-dim": 64,
  "--v-head-dim": 128, "--num-experts": 256, "--moe-router-topk": 8,
  "--moe-layer-freq": "[0,0,0,1,1]", "--moe-ffn-hidden-size": 2048,
  "--moe-shared-expert-intermediate-size": 2048, "--moe-router-enable-expert-bias": true,
  "--experimental-attention-variant": "dsa", "--dsa-indexer-n-heads": 64,
  "--dsa-indexer-head-dim": 128, "--dsa-indexer-topk": 2048, "--no-rope-fusion": true)";

TEST_CASE("sparse attention's indexers are those of the published model") {
  const RunReading run = reading_without_groups(kSparse);
  ModelSpec published = Library().model("deepseek-v3.2").model;
  published.layers.resize(5);
  CHECK(run.unsupported.empty());
  CHECK(count_parameters(run.job.model) == count_parameters(published));
  CHECK(run.job.model.indexer.topk == 2048);
}

// examples/mamba/train.sh of core_v0.16.1, and in ratios' place the patterns that the same file of
// later versions says.
constexpr std::string_view kHybrid = R"("--hidden-size": 1024,
  "--num-attention-heads": 16, "--num-query-groups": 8, "--padded-vocab-size": 256000,
  "--disable-bias-linear": true,
  "--spec": ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"])";

std::string letters_of(const ModelSpec& model) {
  std::string letters;
  for (const LayerSpec& layer : model.layers) {
    letters += layer.mixer == MixerKind::kMamba2      ? 'M'
               : layer.mixer == MixerKind::kAttention ? '*'
               : layer.is_moe                         ? 'E'
                                                      : '-';
  }
  return letters;
}

TEST_CASE("ratios of a hybrid make the pattern that Megatron-LM makes of them") {
  const auto letters = [](const std::string& num_layers) {
    const RunReading run =
        reading_of(kHybrid, R"(, "--hybrid-attention-ratio": 0.08, "--hybrid-mlp-ratio": 0.5,
                               "--num-layers": )" +
                                num_layers);
    CHECK(run.unsupported.empty());
    return letters_of(run.job.model);
  };
  CHECK(letters("48") == "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-");
  CHECK(letters("56") == "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-");
}

TEST_CASE("a hybrid's letters say its layers, and its sizes have Megatron-LM's defaults") {
  const RunReading run =
      reading_of(kHybrid, R"(, "--num-layers": 4, "--hybrid-override-pattern": "M*-M")");
  const ModelSpec& model = run.job.model;
  CHECK(letters_of(model) == "M*-M");
  CHECK(model.mamba.num_heads == 32);
  CHECK(model.mamba.inner == 2048);
  CHECK(model.mamba.groups == 8);
  CHECK(model.mamba.state == 128);
  const std::int64_t packed = 2 * 2048 + 2 * 8 * 128 + 32;
  const std::int64_t mamba =
      1024 + 1024 * packed + 5 * (2048 + 2 * 8 * 128) + 3 * 32 + 2048 + 2048 * 1024;
  const std::int64_t attention = 1024 + 1024 * (16 + 2 * 8) * 64 + 1024 * 1024;
  const std::int64_t ffn = 1024 + 2 * 1024 * 4096;
  CHECK(count_parameters(model) == 2 * mamba + attention + ffn + 2 * 256'000 * 1024 + 1024);
  const RunReading later = reading_of(kHybrid, R"(, "--hybrid-layer-pattern": "M*-M")");
  CHECK(count_parameters(later.job.model) == count_parameters(model));
}

TEST_CASE("what of a hybrid is wrong or not described is said by its name") {
  const auto said = [](const std::string& more) {
    return message_of([&] { reading_of(kHybrid, more); });
  };
  CHECK(said(R"(, "--num-layers": 3, "--hybrid-override-pattern": "M*-M")")
            .find("--hybrid-override-pattern: found 4 letters, expected 3") != std::string::npos);
  CHECK(said(R"(, "--hybrid-layer-pattern": "MX")").find("letters M, *, - and E") !=
        std::string::npos);
  CHECK(said(R"(, "--hybrid-layer-pattern": "ME")").find("--num-experts: found nothing") !=
        std::string::npos);
  const RunReading stages = reading_of(kHybrid, R"(, "--hybrid-layer-pattern": "M*|-M")");
  CHECK(stages.unsupported.find("stages by |") != std::string::npos);
  const RunReading later = reading_of(kHybrid, R"(, "--hybrid-layer-pattern": "MG*-")");
  CHECK(later.unsupported.find("layers G, D and +") != std::string::npos);
  CHECK(later.unsupported.find("later releases than core_v0.16.1") != std::string::npos);
}

TEST_CASE("experts see tokens as wide as --moe-latent-size says") {
  const std::string experts = R"(, "--num-layers": 2, "--hybrid-override-pattern": "ME",
    "--squared-relu": true, "--moe-ffn-hidden-size": 512)";
  const auto elements = [&](const std::string& more) {
    const RunReading run = reading_of(kHybrid, experts + more);
    CHECK(run.unsupported.empty());
    return count_parameters(run.job.model);
  };
  const std::string number = R"(, "--num-experts": 16)";
  const std::int64_t spared = 16 * 2 * 512 * (1024 - 256) - 2 * 1024 * 256;
  CHECK(elements(number) - elements(number + R"(, "--moe-latent-size": 256)") == spared);
  const auto said = [&](const std::string& more) {
    return message_of([&] { reading_of(kHybrid, more); });
  };
  CHECK(said(R"(, "--num-layers": 2, "--hybrid-override-pattern": "M-", "--moe-latent-size": 256)")
            .find("--moe-latent-size: found it without --num-experts") != std::string::npos);
}

TEST_CASE("a pattern by its later name is taken for core_v0.16.1's, and a note says so") {
  const auto notes = [](const std::string& more) { return reading_of(kHybrid, more).notes; };
  const auto says = [](const std::vector<std::string>& all) {
    return std::ranges::any_of(all, [](const std::string& each) {
      return each.find("later releases than core_v0.16.1") != std::string::npos;
    });
  };
  CHECK(says(notes(R"(, "--hybrid-layer-pattern": "M*-M")")));
  CHECK(!says(notes(R"(, "--num-layers": 4, "--hybrid-override-pattern": "M*-M")")));
}

TEST_CASE("registered buffers are read, and double buffers with them") {
  const RunReading plain = reading_of(kQwen3Next, R"(, "--use-nccl-ub": true)");
  CHECK(plain.unsupported.empty());
  CHECK(plain.job.profile.nccl_ub);
  CHECK(!reading_of(kQwen3Next).job.profile.nccl_ub);
}

}  // namespace
}  // namespace shardplan
