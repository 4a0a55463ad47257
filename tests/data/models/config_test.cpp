#include "data/models/config.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/models/config_text.h"
#include "data/read/library.h"
#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

ModelConfig fixture(const std::string& name, UnknownKeys unknown_keys = UnknownKeys::kWarn) {
  const std::string file = name + ".json";
  const std::string folder = SHARDPLAN_SOURCE_DIR "/tests/data/fixtures/model_config/";
  return read_model_config(parse_json(read_text_file(folder + file), file), name, file,
                           unknown_keys);
}

ModelSpec model(const std::string& name) {
  return fixture(name).model;
}

std::vector<std::int64_t> windows(const std::string& name) {
  std::vector<std::int64_t> result;
  for (const LayerSpec& layer : model(name).layers) { result.push_back(layer.attention_window); }
  return result;
}

// One letter per layer: M with experts, d dense.
std::string layer_map(const std::string& name) {
  std::string letters;
  for (const LayerSpec& layer : model(name).layers) { letters += layer.is_moe ? 'M' : 'd'; }
  return letters;
}

bool warns(const ModelConfig& config, const std::string& text) {
  return std::ranges::any_of(config.warnings, [&](const std::string& warning) {
    return warning.find(text) != std::string::npos;
  });
}

// Four layers of hidden 64, four heads of 16, two key/value heads, FFN 128, vocabulary 100:
// q 4096 + kv 2 x 2048 + output 4096, FFN 3 x 8192, two norms of 64; one final norm.
constexpr std::int64_t kToyLayer = 4096 + 2 * 2048 + 4096 + 3 * 8192 + 2 * 64;
constexpr std::int64_t kToyTable = 6400;
constexpr std::int64_t kToy = 2 * kToyTable + 64 + 4 * kToyLayer;

TEST_CASE("tied embeddings follow the family, then text_config, then the top level") {
  CHECK_FALSE(model("tie_absent_llama").tied_embeddings);
  CHECK(model("tie_absent_gemma").tied_embeddings);
  CHECK_FALSE(model("tie_text_config").tied_embeddings);
  CHECK_FALSE(model("tie_top_level").tied_embeddings);
}

TEST_CASE("a tied table over two pipeline stages is one replica more than the model has") {
  Job job;
  job.model = model("tie_pp2");
  job.profile.vocab_multiple = 1;
  const Plan plan = {.tp = 2, .pp = 2};
  CHECK(count_parameters(job.model) == kToy - kToyTable);
  const std::int64_t both_stages =
      local_parameters(job, plan, 0).total() + local_parameters(job, plan, 1).total();
  // Norms lie on both tp ranks: four layers of 128 and the final 64.
  const std::int64_t norms = 4 * 128 + 64;
  CHECK(both_stages == (kToy - kToyTable - norms) / 2 + norms + kToyTable / 2);
}

TEST_CASE("missing key/value heads mean heads in llama and 8 in mistral and mixtral; null: heads") {
  CHECK(model("kv_absent_llama").num_kv_heads == 4);
  CHECK(model("kv_absent_mistral").num_kv_heads == 8);
  CHECK(model("kv_absent_mixtral").num_kv_heads == 8);
  CHECK(model("kv_null_mistral").num_kv_heads == 16);
}

TEST_CASE("head_dim need not be hidden / heads, and its default is the family's") {
  const ModelSpec qwen = model("headdim_qwen3moe");
  CHECK(qwen.head_dim == 128);
  // q 2048 -> 4096, k and v 2048 -> 512 each, output 4096 -> 2048, q and k norms of 128.
  std::int64_t attention = 0;
  for (const ParameterTensor& tensor : layer_parameters(qwen, qwen.layers[0])) {
    const bool is_norm = tensor.name == "attention.norm";
    attention += tensor.name.starts_with("attention.") && !is_norm ? tensor.elements : 0;
  }
  CHECK(attention == 2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 128);
  CHECK(model("headdim_absent_qwen3moe").head_dim == 64);
  CHECK(model("headdim_absent_qwen3").head_dim == 128);
  CHECK(model("headdim_absent_gemma").head_dim == 256);
  CHECK(model("headdim_null_mistral").head_dim == 16);
}

TEST_CASE("positions are those stated, and not known where rotary embeddings are stretched") {
  const auto positions = [](const std::string& more) {
    return read_model_config(parse_json(R"({"model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 96)" + more + "}",
                                        "m.json"),
                             "m", "m.json", UnknownKeys::kRefuse)
        .model.max_sequence_length;
  };
  const std::string stated = R"(, "max_position_embeddings": 4096)";
  CHECK(positions("") == 0);
  CHECK(positions(stated) == 4096);
  CHECK(positions(stated + R"(, "rope_scaling": null)") == 4096);
  CHECK(positions(stated + R"(, "rope_parameters": {"rope_type": "default"})") == 4096);
  CHECK(positions(stated + R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0})") == 0);
}

TEST_CASE("the number of experts is read under each of its three names") {
  const std::int64_t count = count_parameters(model("experts_alias_num_experts"));
  CHECK(model("experts_alias_num_experts").moe.num_experts == 8);
  CHECK(count_parameters(model("experts_alias_num_local_experts")) == count);
  CHECK(count_parameters(model("experts_alias_n_routed_experts")) == count);
}

TEST_CASE("a default of the class that decides the shape is taken with a warning") {
  const ModelConfig config = fixture("experts_absent");
  CHECK(config.model.moe.num_experts == 128);
  REQUIRE(config.warnings.size() == 1);
  CHECK(config.warnings[0] ==
        "experts_absent.json:1: /num_experts: found nothing, took 128, the default of qwen3_moe");
  const ModelConfig mixtral = read_model_config(
      parse_json(R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 96, "num_experts_per_tok": 2})",
                 "m.json"),
      "m", "m.json", UnknownKeys::kWarn);
  REQUIRE(mixtral.warnings.size() == 1);
  CHECK(mixtral.warnings[0] ==
        "m.json:1: /num_local_experts: found nothing, took 8, the default of mixtral");
}

TEST_CASE("rotary settings of every version change nothing and warn of nothing") {
  const ModelConfig v4 = fixture("rope_v4", UnknownKeys::kRefuse);
  const ModelConfig v5 = fixture("rope_v5", UnknownKeys::kRefuse);
  const ModelConfig per_layer = fixture("rope_per_layer", UnknownKeys::kRefuse);
  CHECK(v4.warnings.empty());
  CHECK(v5.warnings.empty());
  CHECK(per_layer.warnings.empty());
  CHECK(v4.model.layers == v5.model.layers);
  CHECK(count_parameters(v4.model) == kToy);
  CHECK(count_parameters(v5.model) == kToy);
}

// transformers models/llama/modeling_llama.py: score and no lm_head; LlamaModel: neither.
TEST_CASE("an architecture without a language-model head is warned about, with what the head has") {
  const auto warnings = [](const std::string& architecture, bool tied = false) {
    const std::string text = R"({"architectures": [")" + architecture + R"("],
      "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
      "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": )" +
                             (tied ? "true}" : "false}");
    return read_model_config(parse_json(text, "x.json"), "x", "x.json", UnknownKeys::kRefuse)
        .warnings;
  };
  for (const std::string name :
       {"LlamaForSequenceClassification", "LlamaForTokenClassification",
        "LlamaForQuestionAnswering", "LlamaForRewardModel", "LlamaModel"}) {
    REQUIRE(warnings(name).size() == 1);
    CHECK(warnings(name)[0] == "x.json:1: /architectures: found " + name +
                                   ", a model without a language-model head; one is counted, of " +
                                   std::to_string(kToyTable) + " parameters, and its loss");
    CHECK(warnings(name, true)[0].find("one is counted, of 0 parameters") != std::string::npos);
  }
  for (const std::string name : {"LlamaForCausalLM", "GPT2LMHeadModel", "LLaMAHeadModelOfMine"}) {
    CHECK(warnings(name).empty());
  }
}

TEST_CASE("two dtypes that differ give one warning") {
  const ModelConfig config = fixture("dtype_both");
  REQUIRE(config.warnings.size() == 1);
  CHECK(warns(config, "/dtype: found bfloat16 but torch_dtype float32"));
}

TEST_CASE("intermediate_size is one FFN matrix's width, whatever another trainer calls so") {
  // Llama 2 70B: 28672, not the 86016 that EleutherAI/gpt-neox issue 1319 needs.
  CHECK(count_parameters(model("inter_mismatch")) == 68'976'648'192);
}

TEST_CASE("a quantized file counts as many parameters as the plain one and says so") {
  const ModelConfig fp8 = fixture("fp8_deepseek");
  CHECK(count_parameters(fp8.model) == count_parameters(model("bf16_deepseek")));
  REQUIRE(fp8.warnings.size() == 1);
  CHECK(warns(fp8, "/quantization_config: parameters are counted as if not quantized"));
}

TEST_CASE("remote code gives one warning and is never needed") {
  const ModelConfig config = fixture("auto_map", UnknownKeys::kRefuse);
  REQUIRE(config.warnings.size() == 1);
  CHECK(warns(config, "/auto_map: the remote code it names is not run"));
}

TEST_CASE("padding of the vocabulary belongs to the framework, not to the model") {
  Job job;
  job.model = model("vocab_50257");
  job.profile.vocab_multiple = 128;
  CHECK(job.model.vocab == 50257);
  CHECK(padded_vocab(job, {.tp = 1}) == 50304);
}

TEST_CASE("latent attention uses its own five widths; a null query rank is a plain projection") {
  const ModelSpec v3 = model("mla_v3");
  CHECK(v3.attention == AttentionKind::kMla);
  CHECK(v3.mla.q_lora_rank == 24);
  CHECK(v3.head_dim == 12);
  const ModelSpec lite = model("mla_v2lite_qnull");
  CHECK(lite.mla.q_lora_rank == 0);
  // By hand: q 64 x 4 x 12; down 64 x 20; its norm 16; up 16 x 4 x 20; output 4 x 12 x 64.
  const std::int64_t attention = 64 * 48 + 64 * 20 + 16 + 16 * 80 + 48 * 64;
  // One dense layer of 3 x 64 x 128; three of 8 + 2 experts of 3 x 64 x 32 and a router 8 x 64.
  const std::int64_t ffn = 3 * 64 * 128 + 3 * (10 * 3 * 64 * 32 + 8 * 64);
  CHECK(count_parameters(lite) == 2 * kToyTable + 64 + 4 * (attention + 128) + ffn);
}

// transformers models/deepseek_v2/configuration_deepseek_v2.py, DeepseekV2Config.
TEST_CASE("widths of latent attention that a file leaves out are those of its class") {
  const std::string file = "config.json";
  const std::string text = R"({"model_type": "deepseek_v2", "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 4, "vocab_size": 100, "first_k_dense_replace": 1,
      "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32})";
  const ModelSpec model =
      read_model_config(parse_json(text, file), "toy", file, UnknownKeys::kWarn).model;
  CHECK(model.mla.q_lora_rank == 1536);
  CHECK(model.mla.kv_lora_rank == 512);
  CHECK(model.mla.qk_nope_head_dim == 128);
  CHECK(model.mla.qk_rope_head_dim == 64);
  CHECK(model.mla.v_head_dim == 128);
}

TEST_CASE("latent attention has no key/value groups: another number of them gives a warning") {
  const ModelConfig config = fixture("mla_kv_heads");
  CHECK(warns(config, "/num_key_value_heads: found 2, took num_attention_heads = 4"));
  CHECK(config.model.num_kv_heads == 4);
}

TEST_CASE("multi-token prediction is read and kept apart") {
  CHECK(model("mtp").num_mtp_layers == 1);
  CHECK(model("bf16_deepseek").num_mtp_layers == 0);
  CHECK(count_parameters(model("mtp")) == count_parameters(model("bf16_deepseek")));
}

TEST_CASE("llama4 swaps the names of the widths and alternates dense and expert layers") {
  const ModelSpec llama4 = model("llama4_interleave");
  CHECK(llama4.ffn == 128);
  CHECK(llama4.moe.expert_ffn == 32);
  CHECK(llama4.moe.shared_ffn == 32);
  CHECK_FALSE(llama4.qk_norm);
  CHECK(layer_map("llama4_interleave") == "dMdMdMdM");
}

TEST_CASE("of text and images the text model alone is counted, and a warning says so") {
  const ModelConfig config = fixture("llama4_vision_key", UnknownKeys::kRefuse);
  REQUIRE(config.warnings.size() == 1);
  CHECK(warns(config, "counts the text model only"));
  CHECK(config.model.family == "llama4_text");
  const ModelConfig silent = fixture("llama4_no_vision_key");
  CHECK(warns(silent, "counts the text model only"));
  CHECK(count_parameters(silent.model) == count_parameters(config.model));
}

// Written by transformers 5.18, Mistral3Config and Qwen3VLMoeConfig with the published sizes: both
// levels say whether tables are tied, each by the default of its class.
TEST_CASE("what transformers 5 writes of text and images is the published model") {
  const ModelConfig mistral = fixture("mistral3_transformers_5", UnknownKeys::kRefuse);
  CHECK(count_parameters(mistral.model) == count_parameters(model("published_mistral_small_3_1")));
  CHECK(warns(mistral,
              "/tie_word_embeddings: found true but the opposite in text_config, took false as "
              "transformers 5 does"));
  const ModelConfig qwen = fixture("qwen3_vl_moe_transformers_5", UnknownKeys::kRefuse);
  CHECK(count_parameters(qwen.model) == 30'532'122'624);  // of Qwen3-30B-A3B
  CHECK_FALSE(qwen.model.tied_embeddings);
}

TEST_CASE("of two answers about tied tables transformers 4 takes the text model's") {
  const auto is_tied = [](const std::string& outer, const std::string& inner) {
    const std::string text = R"({"model_type": "mistral3", "transformers_version": "4.57.1",)"
                             R"( "tie_word_embeddings": )" +
                             outer + R"(, "text_config": {"tie_word_embeddings": )" + inner + "}}";
    return read_model_config(parse_json(text, "config.json"), "m", "config.json",
                             UnknownKeys::kRefuse)
        .model.tied_embeddings;
  };
  CHECK(is_tied("false", "true"));
  CHECK_FALSE(is_tied("true", "false"));
}

TEST_CASE("a text_config may leave every size to its class") {
  // The published file of Gemma 3 4B: heads, head_dim and vocabulary are not in it.
  const ModelSpec gemma = model("text_config_class_defaults");
  CHECK(count_parameters(gemma) == 3'880'263'168);
  CHECK(gemma.layers[4].attention_window == 1024);
  CHECK(gemma.layers[5].attention_window == 0);
}

TEST_CASE("biases and norms without a key are the family's") {
  CHECK(count_parameters(model("tie_absent_llama")) == kToy);
  CHECK(count_parameters(model("qwen2_bias")) == kToy + 4L * (64 + 2 * 32));
  CHECK(count_parameters(model("qwen3_qknorm")) == kToy + 4L * 2 * 16);
  // Two more norms per layer, q and k norms, and one table for both ends.
  CHECK(count_parameters(model("gemma3_norms")) == kToy - kToyTable + 4L * (2 * 64 + 2 * 16));
  CHECK(count_parameters(model("llama_biases")) == kToy + 4L * (64 + 2 * 32 + 64 + 2 * 128 + 64));
  // 8 experts of 3 x 64 x 32 and a router of 8 x 64 for the FFN; a shared one of 3 x 64 x 48 with
  // its gate of 64.
  const std::int64_t experts = 4L * (8 * 3 * 64 * 32 + 8 * 64 + 3 * 64 * 48 + 64 - 3 * 8192);
  CHECK(count_parameters(model("qwen2_moe_no_bias")) == kToy + experts);
  CHECK(count_parameters(model("qwen2_moe_gate")) == kToy + experts + 4L * (64 + 2 * 32));
}

TEST_CASE("files of further families give the published numbers of parameters") {
  // Totals of the safetensors files on huggingface.co; GLM-4.5-Air and Kimi-K2 as counted by hand:
  // without the layer that predicts further tokens.
  const std::vector<std::pair<std::string, std::int64_t>> published = {
      {"published_gemma_7b", 8'537'680'896},       {"published_glm_4_9b", 9'400'279'040},
      {"published_granite_3_1_8b", 8'170'848'256}, {"published_mistral_small_3_1", 23'572'403'200},
      {"published_phi_4", 14'659'507'200},         {"published_phi_4_mini", 3'836'021'760},
      {"published_smollm3_3b", 3'075'098'624},
  };
  for (const auto& row : published) {
    const auto& name = row.first;
    const auto& parameters = row.second;
    CAPTURE(name);
    CHECK(count_parameters(model(name)) == parameters);
  }
}

TEST_CASE(
    "GLM-4.5 has biases of q, k and v alone, one dense layer and its norm of q and k by key") {
  const ModelSpec glm = model("published_glm_4_5_air");
  CHECK(glm.qkv_bias);
  CHECK_FALSE(glm.attention_output_bias);
  CHECK_FALSE(glm.qk_norm);
  CHECK(layer_map("published_glm_4_5_air").starts_with("dM"));
  CHECK(glm.num_mtp_layers == 1);
  // Attention 2 x 4096 x 12288 + 2 x 4096 x 1024 and its biases; 129 experts of 3 x 4096 x 1408, a
  // router with a bias for each of 128; two norms.
  const std::int64_t attention = 2L * 4096 * 12288 + 2L * 4096 * 1024 + 12288 + 2 * 1024;
  const std::int64_t experts = 129L * 3 * 4096 * 1408 + 128L * 4096 + 128;
  const std::int64_t layers = 46 * (attention + 2 * 4096) + 45 * experts + 3L * 4096 * 10944;
  CHECK(count_parameters(glm) == layers + 2L * 151552 * 4096 + 4096);
}

TEST_CASE("Kimi-K2 is a DeepSeek-V3 with 384 experts and one dense layer") {
  const ModelSpec kimi = model("published_kimi_k2");
  CHECK(kimi.attention == AttentionKind::kMla);
  CHECK(kimi.moe.num_experts == 384);
  CHECK(kimi.moe.router_bias);
  CHECK(layer_map("published_kimi_k2").starts_with("dMM"));
}

TEST_CASE("an operation that no row describes is named, not dropped") {
  const ModelConfig granite = fixture("published_granite_3_1_8b");
  REQUIRE(granite.warnings.size() == 1);
  CHECK(warns(granite, "/logits_scaling: found number 16: the operation it adds is not counted "));
}

TEST_CASE("every key that selects the layers with experts is honoured") {
  CHECK(layer_map("moe_layer_map_first_k_dense_replace") == "ddMM");
  CHECK(layer_map("moe_layer_map_moe_layer_freq") == "ddMd");
  CHECK(layer_map("moe_layer_map_decoder_sparse_step") == "dMdM");
  CHECK(layer_map("moe_layer_map_mlp_only_layers") == "dMMd");
  CHECK(layer_map("moe_layer_map_moe_layers") == "dMdddMdd");
  CHECK(layer_map("bf16_deepseek") == "dddM");     // deepseek_v3: three dense layers
  CHECK(layer_map("mla_v2lite_qnull") == "dMMM");  // deepseek_v2: as the file says
  CHECK(layer_map("window_mixtral") == "MMMM");
}

TEST_CASE("attention windows follow each family's own rule") {
  using Widths = std::vector<std::int64_t>;
  CHECK(windows("tie_absent_llama") == Widths{0, 0, 0, 0});
  CHECK(windows("window_mistral_absent") == Widths{4096, 4096, 4096, 4096});
  CHECK(windows("window_mistral_null") == Widths{0, 0, 0, 0});
  CHECK(windows("window_mixtral") == Widths{0, 0, 0, 0});
  CHECK(windows("window_qwen2_unused") == Widths{0, 0, 0, 0});
  CHECK(windows("window_qwen2_used") == Widths{0, 0, 0, 1000});
  CHECK(windows("window_qwen3moe_used") == Widths{1000, 1000, 1000, 1000});
  CHECK(windows("window_gemma2") == Widths{1000, 0, 1000, 0});
  CHECK(windows("window_gemma3_pattern") == Widths{1000, 1000, 0, 1000});
  CHECK(windows("layer_types") == Widths{0, 512, 512, 0});
  const std::int64_t c = 8192;
  CHECK(windows("llama4_chunks") == Widths{c, c, c, 0, c, c, c, 0});
  CHECK(windows("llama4_no_rope_layers") == Widths{0, c, c, c, c, c, c, 0});
  CHECK(windows("llama4_no_chunks") == Widths(8, 0));
  for (const char* const name : {"llama4_chunks", "llama4_no_rope_layers", "llama4_no_chunks"}) {
    for (const LayerSpec& layer : model(name).layers) {
      CHECK(layer.attends_in_chunks == (layer.attention_window > 0));
    }
  }
  for (const LayerSpec& layer : model("window_gemma2").layers) {
    CHECK_FALSE(layer.attends_in_chunks);
  }
}

TEST_CASE("an unknown key gives one warning, or an error where asked") {
  const ModelConfig config = fixture("unknown_keys");
  REQUIRE(config.warnings.size() == 2);
  CHECK(config.warnings[0] ==
        "unknown_keys.json:9: /new_gating: found an unknown key, expected a known one; ignored");
  CHECK(warns(config, "(did you mean \"num_hidden_layers\"?)"));
  CHECK_THROWS_AS(fixture("unknown_keys", UnknownKeys::kRefuse), InputError);
}

ModelConfig small_model(const std::string& model_type, const std::string& more) {
  const std::string text =
      R"({"model_type": ")" + model_type +
      R"(", "hidden_size": 256, "intermediate_size": 512,)"
      R"( "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000)" +
      more + "}";
  return read_model_config(parse_json(text, "config.json"), "small", "config.json",
                           UnknownKeys::kRefuse);
}

TEST_CASE("what a file says to be unset needs no one who knows it, unless it is a misspelling") {
  CHECK(
      small_model("llama", R"(, "sliding_window": null, "lm_head_bias": false)").warnings.empty());
  CHECK_THROWS_AS(small_model("llama", R"(, "tie_word_embedings": false)"), InputError);
  CHECK_THROWS_AS(small_model("llama", R"(, "lm_head_bias": true)"), InputError);
}

// transformers configuration_glm4.py: attention_bias is true, configuration_glm4_moe.py: false.
TEST_CASE("where a file is silent about biases its class decides") {
  CHECK(small_model("glm4", R"(, "num_key_value_heads": 2)").model.qkv_bias);
  CHECK_FALSE(
      small_model("glm4", R"(, "num_key_value_heads": 2, "attention_bias": false)").model.qkv_bias);
  CHECK_FALSE(small_model("llama", "").model.qkv_bias);
}

TEST_CASE("a key without effect is known to its own family only") {
  CHECK(fixture("keys_without_effect", UnknownKeys::kRefuse).warnings.empty());
  CHECK(fixture("key_of_its_family", UnknownKeys::kRefuse).warnings.empty());
  CHECK(fixture("key_of_another_family").warnings.size() == 1);
}

struct Refusal {
  std::string fixture;
  std::string message;  // part of it
};

TEST_CASE("contradictions and impossible sizes are refused with place, found and expected") {
  const std::vector<Refusal> refusals = {
      {"tie_conflict", ":3: /tie_word_embeddings: found false but the opposite in text_config"},
      {"kv_default_no_divisor", "found 8 (the default of mistral), expected a divisor of"},
      {"kv_no_divisor", "/num_key_value_heads: found 3, expected a divisor of"},
      {"headdim_not_divisible", "/hidden_size: found 64, expected a multiple of"},
      {"experts_conflict", "found 16 but 8 under another name"},
      {"experts_fewer_than_topk", "/num_experts_per_tok: found 4, expected at most the 2 experts"},
      {"layer_types_unknown", "/layer_types: found string \"linear_attention\", expected full"},
      {"layer_types_short", "/layer_types: found an array of 3, expected a list of 4 strings"},
      {"layer_types_no_window", "found string \"sliding_attention\", expected a sliding_window"},
      {"per_layer_config", "/per_layer_config: found an object of 1, expected none"},
      {"mla_bias", "/attention_bias: found true, expected false"},
      {"mtp_conflict", "found 2 but 1 under another name"},
      {"llama4_no_rope_layers_short", "found 2 numbers, expected one per layer, 8"},
      {"moe_layers_out_of_range", "/moe_layers: found integer 8, expected a list of integers from"},
      {"wrapper_without_text", "/text_config: found nothing, expected the text model"},
      {"wrapper_wrong_text", "/text_config/model_type: found llama, expected llama4_text"},
      {"bidirectional", "/use_bidirectional_attention: found true, expected false"},
      {"model_type_absent", ":1: /model_type: found nothing, expected one of "},
      {"model_type_unknown", ":2: /model_type: found bloom, expected one of "},
      {"model_type_misspelt", "(did you mean \"llama\"?)"},
      {"intermediate_size_absent", "/intermediate_size: found nothing, expected an integer from 1"},
      {"vocab_size_absent", "/vocab_size: found nothing, expected an integer from 1"},
      {"hidden_too_large", "found integer 1048580, expected an integer from 1 to 1048576"},
      {"layers_zero", "found integer 0, expected an integer from 1 to 4096"},
      {"layers_too_many", "found integer 4097, expected an integer from 1 to 4096"},
      {"vocab_negative", "found integer -1, expected an integer from 1 to 16777216"},
      {"vocab_too_large", "found integer 16777217, expected an integer from 1 to 16777216"},
      {"heads_real", "/num_attention_heads: found number 4, expected an integer"},
      {"hidden_string", "/hidden_size: found string \"64\", expected an integer"},
      {"sequence_too_long", "found integer 134217729, expected an integer from 1 to 134217728"},
      {"parameters_too_many", "found sizes that make about 1e17 parameters, expected at most 2^50"},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.fixture);
    std::string message;
    try {
      fixture(refusal.fixture);
    } catch (const InputError& error) { message = error.what(); }
    CAPTURE(message);
    CHECK(message.starts_with(refusal.fixture + ".json:"));
    CHECK(message.find(refusal.message) != std::string::npos);
  }
}

TEST_CASE("an Infinity among the bounds of Mamba's steps is no part of JSON and of no effect") {
  const std::string limits = R"({"a": Infinity, "time_step_limit": [0.0, Infinity], "b": [1]})";
  CHECK(with_finite_steps(limits) ==
        R"({"a": Infinity, "time_step_limit": [0.0, 1e308   ], "b": [1]})");
  CHECK(with_finite_steps(R"({"time_step_limit": null})") == R"({"time_step_limit": null})");
  CHECK(with_finite_steps(R"("time_step_limit")") == R"("time_step_limit")");
}

}  // namespace
}  // namespace shardplan
