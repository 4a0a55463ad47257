#include "estimator/parameters.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace shardplan;

namespace {

ModelSpec llama3_8b() {
  ModelSpec model;
  model.hidden = 4096;
  model.ffn = 14336;
  model.vocab = 128256;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.layers.resize(32);
  return model;
}

ModelSpec llama3(std::int64_t hidden, std::int64_t ffn, std::int64_t heads, std::size_t layers) {
  ModelSpec model = llama3_8b();
  model.hidden = hidden;
  model.ffn = ffn;
  model.num_heads = heads;
  model.layers.resize(layers);
  return model;
}

// huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json
ModelSpec deepseek_v3() {
  ModelSpec model;
  model.hidden = 7168;
  model.ffn = 18432;
  model.vocab = 129280;
  model.num_heads = 128;
  model.num_kv_heads = 128;
  model.attention = AttentionKind::kMla;
  model.mla = {.q_lora_rank = 1536,
               .kv_lora_rank = 512,
               .qk_nope_head_dim = 128,
               .qk_rope_head_dim = 64,
               .v_head_dim = 128};
  model.moe = {.num_experts = 256, .topk = 8, .expert_ffn = 2048, .shared_ffn = 2048};
  model.num_mtp_layers = 1;
  model.layers = std::vector<LayerSpec>(61, {.is_moe = true});
  for (std::size_t layer = 0; layer < 3; ++layer) { model.layers[layer].is_moe = false; }
  return model;
}

std::int64_t elements_of(const std::vector<ParameterTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &ParameterTensor::name);
  return found == tensors.end() ? -1 : found->elements;
}

std::int64_t sum_of(const std::vector<ParameterTensor>& tensors) {
  std::int64_t sum = 0;
  for (const ParameterTensor& tensor : tensors) { sum += tensor.elements; }
  return sum;
}

}  // namespace

TEST_CASE("Llama-3 models have their published numbers of parameters") {
  // arXiv 2407.21783, exact integers from the shapes of its Table 3 with vocabulary 128256.
  CHECK(count_parameters(llama3_8b()) == 8'030'261'248);
  CHECK(count_parameters(llama3(8192, 28672, 64, 80)) == 70'553'706'496);
  CHECK(count_parameters(llama3(16384, 53248, 128, 126)) == 405'853'388'800);
}

TEST_CASE("a layer of Llama-3-8B is counted by hand") {
  const std::vector<ParameterTensor> tensors = layer_parameters(llama3_8b(), {});
  // 4096 x (32 + 2 x 8) x 128; 4096 x 4096; 2 x 4096 x 14336; 14336 x 4096.
  CHECK(elements_of(tensors, "attention.qkv") == 25'165'824);
  CHECK(elements_of(tensors, "attention.output") == 16'777'216);
  CHECK(elements_of(tensors, "ffn.fc1") == 117'440'512);
  CHECK(elements_of(tensors, "ffn.fc2") == 58'720'256);
  CHECK(elements_of(tensors, "attention.norm") == 4096);
  CHECK(elements_of(tensors, "ffn.norm") == 4096);
  CHECK(sum_of(tensors) == 218'112'000);
}

TEST_CASE("DeepSeek-V3 counts 671 billion, 37 billion of them active, and its MTP module apart") {
  const ModelSpec model = deepseek_v3();
  // One MLA attention: 7168*1536 + 1536 + 1536*128*192 + 7168*576 + 512 + 512*128*256 + 16384*7168.
  const std::vector<ParameterTensor> dense = layer_parameters(model, {});
  CHECK(sum_of(dense) == 187'107'328 + 2 * 7168 + 3 * 7168 * 18432);
  // huggingface.co/deepseek-ai/DeepSeek-V3: 671B in total, 37B active (routing bias not counted).
  CHECK(count_parameters(model) == 671'026'404'352);
  CHECK(count_active_parameters(model) / 1'000'000'000 == 37);
  // One more MoE layer, projection of [embedding, hidden], three norms (README_WEIGHTS.md there:
  // "11.5B unique parameters").
  CHECK(count_mtp_parameters(model) ==
        sum_of(layer_parameters(model, {.is_moe = true})) + 2 * 7168 * 7168 + 3 * 7168);
}

TEST_CASE("without q-LoRA the query is one projection and has no norm") {
  ModelSpec model = deepseek_v3();
  model.mla.q_lora_rank = 0;
  const std::vector<ParameterTensor> tensors = layer_parameters(model, {});
  CHECK(elements_of(tensors, "attention.q") == 7168 * 128 * 192);
  CHECK(elements_of(tensors, "attention.q_down") == -1);
  CHECK(elements_of(tensors, "attention.q_down_norm") == -1);
}

TEST_CASE("the head dimension need not be hidden over heads") {
  // Qwen3-30B-A3B: hidden 2048, 32 heads of 128.
  ModelSpec model = llama3_8b();
  model.hidden = 2048;
  model.num_kv_heads = 4;
  model.qk_norm = true;
  const std::vector<ParameterTensor> tensors = layer_parameters(model, {});
  CHECK(elements_of(tensors, "attention.qkv") == 2048 * (4096 + 1024));
  CHECK(elements_of(tensors, "attention.output") == 4096 * 2048);
  CHECK(elements_of(tensors, "attention.q_norm") == 128);
}

TEST_CASE("each bias adds its own width") {
  const ModelSpec plain = llama3_8b();
  ModelSpec biased = plain;
  biased.qkv_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) == 32 * 6144);
  biased.attention_output_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) == 32 * (6144 + 4096));
  biased.ffn_bias = true;
  CHECK(count_parameters(biased) - count_parameters(plain) ==
        32 * (6144 + 4096 + 2 * 14336 + 4096));
}

TEST_CASE("tied embeddings are counted once, Gemma's extra norms twice a layer") {
  const ModelSpec plain = llama3_8b();
  ModelSpec tied = plain;
  tied.tied_embeddings = true;
  CHECK(count_parameters(plain) - count_parameters(tied) == 4096 * 128256);
  ModelSpec four_norms = plain;
  four_norms.norms_per_layer = 4;
  CHECK(count_parameters(four_norms) - count_parameters(plain) == 32 * 2 * 4096);
}

TEST_CASE("a mixture of experts adds router, experts and the gated shared expert") {
  // Qwen1.5-MoE-A2.7B (config.json on huggingface.co): 14,315,784,192 parameters.
  ModelSpec model = llama3_8b();
  model.hidden = 2048;
  model.vocab = 151936;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.qkv_bias = true;
  model.moe = {
      .num_experts = 60, .topk = 4, .expert_ffn = 1408, .shared_ffn = 5632, .shared_gate = true};
  model.layers = std::vector<LayerSpec>(24, {.is_moe = true});
  const std::vector<ParameterTensor> tensors = layer_parameters(model, model.layers.front());
  CHECK(elements_of(tensors, "router") == 2048 * 60);
  CHECK(elements_of(tensors, "experts.fc1") + elements_of(tensors, "experts.fc2") ==
        60 * 3 * 2048 * 1408);
  CHECK(elements_of(tensors, "shared.gate") == 2048);
  CHECK(count_parameters(model) == 14'315'784'192);
  // Of 60 experts a token uses 4.
  CHECK(count_parameters(model) - count_active_parameters(model) ==
        24 * 56 * 3 * std::int64_t{2048} * 1408);
}
