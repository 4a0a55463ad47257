#include "estimator/plan/mixer_parameters.h"

#include <doctest/doctest.h>

#include "estimator/plan/parameters.h"

using namespace shardplan;

namespace {

std::int64_t mixer_elements(const ModelSpec& model, const LayerSpec& layer) {
  ParameterTensors tensors;
  add_mixer(tensors, model, layer);
  std::int64_t elements = 0;
  for (const ParameterTensor& tensor : tensors) { elements += tensor.elements; }
  return elements;
}

ModelSpec attention_model(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                          std::int64_t head_dim) {
  ModelSpec model;
  model.hidden = hidden;
  model.num_heads = heads;
  model.num_kv_heads = kv_heads;
  model.head_dim = head_dim;
  return model;
}

}  // namespace

TEST_CASE("attention of gpt-oss-20b has four biases and a sink a head") {
  ModelSpec model = attention_model(2880, 64, 8, 64);
  model.qkv_bias = true;
  model.attention_output_bias = true;
  const std::int64_t projections = 2 * 2880 * 4096 + 2 * 2880 * 512;
  CHECK(mixer_elements(model, {.has_sinks = true}) == projections + 4096 + 2 * 512 + 2880 + 64);
}

TEST_CASE("an elementwise gate doubles the query projection, one of heads is a projection itself") {
  // Qwen3.5-35B-A3B: hidden 2048, 16 heads of 256, 2 of keys and values.
  ModelSpec model = attention_model(2048, 16, 2, 256);
  model.qk_norm = true;
  model.attention_gate = AttentionGate::kPerElement;
  CHECK(mixer_elements(model, {}) == 3 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 256);
  model.attention_gate = AttentionGate::kPerHead;
  CHECK(mixer_elements(model, {}) == 2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 256 + 16 * 2048);
}

TEST_CASE("norms over all heads are as wide as these together") {
  ModelSpec model = attention_model(4096, 32, 8, 128);
  const std::int64_t plain = mixer_elements(model, {});
  model.qk_norm = true;
  model.norms_all_heads = true;
  CHECK(mixer_elements(model, {}) == plain + (32 + 8) * 128);
}

TEST_CASE("a layer may have other heads, values of another width, or no keys of its own") {
  ModelSpec model = attention_model(4096, 64, 4, 192);
  model.qk_norm = true;
  // MiMo-V2-Flash: keys of 192, values of 128.
  const LayerSpec own = {
      .heads = {.num_heads = 64, .num_kv_heads = 8, .qk_head_dim = 192, .v_head_dim = 128}};
  CHECK(mixer_elements(model, own) == 4096 * (64 + 8) * (192 + 128) + 2 * 192);
  const std::int64_t query_and_output = 2 * 4096 * 64 * 192;
  CHECK(mixer_elements(model, {.key_values = KeyValueSource::kEarlierLayer}) ==
        query_and_output + 192);
  CHECK(mixer_elements(model, {.key_values = KeyValueSource::kKeysAreValues}) ==
        query_and_output + 4096 * 4 * 192 + 2 * 192);
}

TEST_CASE("DeepSeek-V3.2's indexer adds 13,959,424 parameters to a layer") {
  ModelSpec model;
  model.hidden = 7168;
  model.num_heads = 128;
  model.attention = AttentionKind::kMla;
  model.mla = {.q_lora_rank = 1536,
               .kv_lora_rank = 512,
               .qk_nope_head_dim = 128,
               .qk_rope_head_dim = 64,
               .v_head_dim = 128};
  model.indexer = {.num_heads = 64, .head_dim = 128, .topk = 2048};
  // 1536 x 64 x 128 + 7168 x 128 + 2 x 128 + 7168 x 64
  CHECK(mixer_elements(model, {.has_indexer = true}) - mixer_elements(model, {}) == 13'959'424);
}

TEST_CASE("a gated delta net of Qwen3.5-35B-A3B is counted by hand") {
  ModelSpec model = attention_model(2048, 16, 2, 256);
  model.delta = {.key_heads = 16,
                 .value_heads = 32,
                 .key_head_dim = 128,
                 .value_head_dim = 128,
                 .convolution = 4};
  // 2048 x (2 x 2048 + 2 x 4096 + 2 x 32) + 4 x 8192 + 2 x 32 + 128 + 4096 x 2048
  CHECK(mixer_elements(model, {.mixer = MixerKind::kGatedDelta}) == 33'718'464);
}

TEST_CASE("Kimi delta attention of Kimi-Linear-48B is counted by hand") {
  ModelSpec model = attention_model(2304, 32, 32, 192);
  model.delta = {.key_heads = 32,
                 .value_heads = 32,
                 .key_head_dim = 128,
                 .value_head_dim = 128,
                 .convolution = 4};
  // 4 x 2304 x 4096 + 12 x 4096 + 2 x 128 x (2304 + 4096) + 4096 + 32 + 32 x 2304 + 128
  CHECK(mixer_elements(model, {.mixer = MixerKind::kKimiDelta}) == 39'514'272);
}

TEST_CASE("lightning attention has five products of its width and a norm") {
  // MiniMax-Text-01: hidden 6144, 64 heads of 128.
  const ModelSpec model = attention_model(6144, 64, 8, 128);
  CHECK(mixer_elements(model, {.mixer = MixerKind::kLightning}) ==
        std::int64_t{5} * 6144 * 8192 + 8192);
}

TEST_CASE("Mamba-2 of Nemotron-3-Super is counted by hand") {
  ModelSpec model = attention_model(4096, 32, 2, 128);
  model.mamba = {
      .num_heads = 128, .head_dim = 64, .inner = 8192, .state = 128, .groups = 8, .convolution = 4};
  // 4096 x (3 x 8192 + 2 x 1024 + 128) + 5 x 10240 + 3 x 128 + 8192; with its norm 109,640,064.
  const LayerSpec layer = {.mixer = MixerKind::kMamba2, .has_ffn = false};
  CHECK(mixer_elements(model, layer) == 109'640'064 - 4096);
  model.norms_per_layer = 1;
  std::int64_t elements = 0;
  for (const ParameterTensor& tensor : layer_parameters(model, layer)) {
    elements += tensor.elements;
  }
  CHECK(elements == 109'640'064);
}

TEST_CASE("Mamba of Jamba makes step sizes and matrices from what it mixes") {
  ModelSpec model = attention_model(4096, 32, 8, 128);
  model.mamba = {
      .inner = 8192, .state = 16, .convolution = 4, .step_rank = 256, .inner_norms = true};
  // 3 x 4096 x 8192 + 5 x 8192 + 8192 x (256 + 32) + 257 x 8192 + 16 x 8192 + 8192 + 256 + 32
  CHECK(mixer_elements(model, {.mixer = MixerKind::kMamba1}) ==
        100'663'296 + 40'960 + 2'359'296 + 2'105'344 + 131'072 + 8'192 + 288);
}

TEST_CASE("a short convolution of LFM2-1.2B has four squares and three numbers a channel") {
  ModelSpec model = attention_model(2048, 32, 8, 64);
  model.short_convolution = {.tokens = 3};
  CHECK(mixer_elements(model, {.mixer = MixerKind::kShortConvolution}) ==
        4 * 2048 * 2048 + 3 * 2048);
}

TEST_CASE("Mamba-2 beside attention adds up, and a layer of an FFN alone has no mixer") {
  ModelSpec model = attention_model(1024, 8, 2, 128);
  model.ffn = 4096;
  model.mamba = {.num_heads = 24,
                 .head_dim = 64,
                 .inner = 1536,
                 .state = 128,
                 .convolution = 4,
                 .gated_norm = false};
  CHECK(mixer_elements(model, {.has_mamba_beside = true}) ==
        mixer_elements(model, {}) + mixer_elements(model, {.mixer = MixerKind::kMamba2}));
  CHECK(mixer_elements(model, {.mixer = MixerKind::kNone}) == 0);
  CHECK(layer_parameters(model, {.mixer = MixerKind::kNone}).front().name == "ffn.norm");
}
