// Defaults: huggingface/transformers 5.17, models/<family>/configuration_<family>.py; biases and
// norms: modeling_<family>.py beside it. chatglm, exaone, internlm2, internlm3, minicpm, mimo:
// configuration files of THUDM/glm-4-9b, LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct,
// internlm/internlm2_5-7b, internlm/internlm3-8b-instruct, openbmb/MiniCPM-2B-sft-bf16 and
// XiaomiMiMo/MiMo-7B-Base, and the modeling files beside them.
#include "data/models/families/dense.h"

#include <array>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/layers.h"

namespace shardplan {
namespace {

using Keys = std::string_view;

constexpr std::array kLayerNormKeys = std::to_array<Keys>(
    {"embd_pdrop", "hidden_dropout", "layer_norm_eps", "norm_eps", "resid_pdrop"});

constexpr std::array kCohereKeys =
    std::to_array<Keys>({"cache_implementation", "layer_norm_bias", "layer_norm_eps",
                         "layer_switch", "logit_scale", "order_of_interleaved_layers",
                         "position_embedding_type", "rotary_pct", "use_embedding_sharing",
                         "use_gated_activation", "use_parallel_block", "use_parallel_embedding"});

constexpr std::array kStarcoderKeys = std::to_array<Keys>(
    {"activation_function", "attention_softmax_in_fp32", "embedding_dropout", "layer_norm_epsilon",
     "mlp_type", "norm_epsilon", "norm_type", "residual_dropout", "scale_attention_softmax_in_fp32",
     "scale_attn_weights"});

constexpr std::array kNemotronKeys =
    std::to_array<Keys>({"norm_eps", "partial_rotary_factor", "rope_percent", "rotary_percent"});

constexpr std::array kApertusKeys =
    std::to_array<Keys>({"mlp_bias", "post_norm", "qk_norm"});  // none of them read by the class

constexpr std::array kOlmoKeys = std::to_array<Keys>({"clip_qkv"});

constexpr std::array kMinistralKeys = std::to_array<Keys>({"layer_types", "llama_4_scaling"});

constexpr std::array kHunyuanKeys = std::to_array<Keys>({"add_classification_head",
                                                         "attention_head_dim",
                                                         "class_num",
                                                         "cla_share_factor",
                                                         "dense_list",
                                                         "enable_lm_head_fp32",
                                                         "eod_token_id",
                                                         "im_end_id",
                                                         "im_newline_id",
                                                         "im_start_id",
                                                         "mask_init_id",
                                                         "mlp_bias",
                                                         "norm_type",
                                                         "org_vocab_size",
                                                         "pool_type",
                                                         "position_embedding_xdrope",
                                                         "q_lora_rank",
                                                         "kv_lora_rank",
                                                         "qk_nope_head_dim",
                                                         "qk_rope_head_dim",
                                                         "v_head_dim",
                                                         "routed_scaling_factor",
                                                         "text_end_id",
                                                         "text_start_id",
                                                         "use_cla",
                                                         "use_mla",
                                                         "use_qk_norm",
                                                         "use_rotary_pos_emb",
                                                         "xdrope_section"});

constexpr std::array kMimoKeys =
    std::to_array<Keys>({"attention_bias", "max_window_layers", "sliding_window"});

constexpr std::array kMiniCpmKeys = std::to_array<Keys>(
    {"dim_model_base", "mup_denominator", "scale_depth", "scale_emb", "sparse_config"});

constexpr std::array kInternLmKeys = std::to_array<Keys>({"attn_implementation", "bias"});

constexpr std::array kGlmVisionKeys = std::to_array<Keys>({"layer_types"});

constexpr std::array kChatGlmOwnKeys = std::to_array<OwnKey>({
    {.usual = "intermediate_size", .own = "ffn_hidden_size"},
    {.usual = "vocab_size", .own = "padded_vocab_size"},
    {.usual = "num_hidden_layers", .own = "num_layers"},
    {.usual = "num_key_value_heads", .own = "multi_query_group_num"},
    {.usual = "head_dim", .own = "kv_channels"},
    {.usual = "max_position_embeddings", .own = "seq_length"},
});
constexpr std::array kChatGlmKeys = std::to_array<Keys>(
    {"add_bias_linear", "apply_query_key_layer_scaling", "apply_residual_connection_post_layernorm",
     "attention_softmax_in_fp32", "bias_dropout_fusion", "classifier_dropout",
     "fp32_residual_connection", "hidden_dropout", "interleaved_qkv", "layernorm_epsilon",
     "multi_query_attention", "original_rope", "post_layer_norm", "rmsnorm", "rope_ratio",
     "use_cache", "vocab_size"});

constexpr std::array kExaoneOwnKeys = std::to_array<OwnKey>({
    {.usual = "num_hidden_layers", .own = "num_layers"},
});
constexpr std::array kExaoneKeys = std::to_array<Keys>(
    {"activation_function", "embed_dropout", "head_dim", "layer_norm_epsilon", "rotary_pct"});

constexpr std::array kHunyuanOwnKeys = std::to_array<OwnKey>({
    {.usual = "head_dim", .own = "attention_head_dim"},
});

// Attention and FFN read one norm where use_parallel_residual is true; norms of heads have no bias.
void read_stablelm_parts(ConfigReading& reading) {
  ModelSpec& model = reading.model;
  model.qk_norm = reading.fields.boolean_or("qk_layernorm", false);
  model.norms_all_heads = model.qk_norm;
  model.qk_norm_bias = false;
  model.parallel_ffn = reading.fields.boolean_or("use_parallel_residual", false);
  model.norms_per_layer = model.parallel_ffn ? 1 : 2;
}

void read_phi_parts(ConfigReading& reading) {
  reading.model.qk_norm = reading.fields.boolean_or("qk_layernorm", false);
}

// Norms of heads as wide as all of them together.
void read_cohere_parts(ConfigReading& reading) {
  reading.model.norms_all_heads = reading.model.qk_norm;
}

// Only layers with a window know positions.
void read_cohere2_windows(ConfigReading& reading) {
  read_windows_by_pattern(reading);
  for (LayerSpec& layer : reading.model.layers) { layer.has_rotary = layer.attention_window > 0; }
}

// All layers have the window unless layer_types says otherwise.
void read_ministral_windows(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  if (window == 0) {
    return reading.fields.ignore("layer_types");
  }
  if (!read_layer_types(reading, {.sliding = window})) {
    put_windows(reading, window, reading.model.num_layers() + 1);
  }
}

// MiniCPM-MoE has experts of an FFN's width in every layer.
void read_minicpm_experts(ConfigReading& reading) {
  if (is_given(reading, "num_experts")) {
    read_mixtral_experts(reading);
  }
}

// LayerNorms without weight and bias.
void read_olmo_parts(ConfigReading& reading) {
  reading.model.norm_weights = false;
}

// As Qwen2 with a width of heads: a module of multi-token prediction beside it.
void read_mimo_parts(ConfigReading& reading) {
  const bool uses_window = reading.fields.boolean_or("use_sliding_window", false);
  if (uses_window) {
    throw reading.fields.error("use_sliding_window", "found true, expected false for mimo");
  }
  reading.model.num_mtp_layers =
      reading.fields.integer_or("num_nextn_predict_layers", 0, 0, kMaxMtpLayers);
}

constexpr ModelFamily kQwen2Vl = {.model_type = "qwen2_vl_text",
                                  .vocab = 152064,
                                  .hidden = 8192,
                                  .ffn = 29568,
                                  .num_layers = 80,
                                  .num_heads = 64,
                                  .num_kv_heads = 8,
                                  .window = 4096,
                                  .bias = AttentionBias::kQkvAlways,
                                  .read_windows = read_windows_of_upper_layers};

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "apertus",
     .gated_ffn = false,
     .activation = Activation::kXielu,
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .without_effect = kApertusKeys},
    {.model_type = "arcee",
     .gated_ffn = false,
     .activation = Activation::kReluSquared,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey},
    {.model_type = "chatglm",
     .own_keys = kChatGlmOwnKeys,
     .rotary_share = 0.5,
     .bias = AttentionBias::kQkvByAddKey,
     .without_effect = kChatGlmKeys},
    {.model_type = "cohere",
     .vocab = 256000,
     .hidden = 8192,
     .ffn = 22528,
     .num_layers = 40,
     .num_heads = 64,
     .tied_embeddings = true,
     .qk_norm_key = true,
     .norms_per_layer = 1,
     .parallel_ffn = true,
     .layer_norm = true,
     .norm_bias = false,
     .bias = AttentionBias::kByKey,
     .read_own_parts = read_cohere_parts,
     .without_effect = kCohereKeys},
    {.model_type = "cohere2",
     .vocab = 256000,
     .hidden = 8192,
     .ffn = 22528,
     .num_layers = 40,
     .num_heads = 64,
     .window = 4096,
     .window_pattern = 4,
     .tied_embeddings = true,
     .norms_per_layer = 1,
     .parallel_ffn = true,
     .layer_norm = true,
     .norm_bias = false,
     .bias = AttentionBias::kByKey,
     .read_windows = read_cohere2_windows,
     .without_effect = kCohereKeys},
    {.model_type = "ernie4_5",
     .head_dim = 128,
     .tied_embeddings = true,
     .ffn_bias_key = "use_bias",
     .bias = AttentionBias::kByUseBias},
    {.model_type = "exaone", .own_keys = kExaoneOwnKeys, .without_effect = kExaoneKeys},
    {.model_type = "exaone4",
     .window = 4096,
     .window_pattern = 4,
     .qk_norm = true,
     .norms_after = true,
     .read_windows = read_windows_with_positions},
    // GLM-4 of before the norms behind attention and FFN.
    {.model_type = "glm",
     .num_kv_heads = 2,
     .head_dim = 128,
     .rotary_share = 0.5,
     .attention_bias = true,
     .bias = AttentionBias::kQkvByAttentionKey},
    {.model_type = "glm4v_text",
     .vocab = 151552,
     .hidden = 4096,
     .ffn = 13696,
     .num_layers = 40,
     .num_heads = 32,
     .num_kv_heads = 2,
     .rotary_share = 0.5,
     .norms_per_layer = 4,
     .bias = AttentionBias::kQkvAlways,
     .without_effect = kGlmVisionKeys},
    {.model_type = "helium", .num_kv_heads = 20, .head_dim = 128, .bias = AttentionBias::kByKey},
    {.model_type = "hunyuan_v1_dense",
     .own_keys = kHunyuanOwnKeys,
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .without_effect = kHunyuanKeys},
    {.model_type = "internlm2", .without_effect = kInternLmKeys},
    {.model_type = "internlm3", .bias = AttentionBias::kQkvByKey, .without_effect = kInternLmKeys},
    {.model_type = "mimo",
     .bias = AttentionBias::kQkvAlways,
     .read_own_parts = read_mimo_parts,
     .without_effect = kMimoKeys},
    {.model_type = "minicpm",
     .moe = {.num_experts = 8, .topk = 2},
     .tied_embeddings = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_minicpm_experts,
     .without_effect = kMiniCpmKeys},
    {.model_type = "ministral",
     .num_kv_heads = 8,
     .window = 4096,
     .read_windows = read_ministral_windows},
    {.model_type = "ministral3",
     .vocab = 131072,
     .hidden = 4096,
     .ffn = 14336,
     .num_layers = 34,
     .num_heads = 32,
     .num_kv_heads = 8,
     .head_dim = 128,
     .read_windows = read_windows_of_all_layers,
     .without_effect = kMinistralKeys},
    {.model_type = "nemotron",
     .head_dim = 0,
     .rotary_share = 0.5,
     .gated_ffn = false,
     .activation = Activation::kReluSquared,
     .ffn_bias_key = "mlp_bias",
     .layer_norm = true,
     .bias = AttentionBias::kByKey,
     .without_effect = kNemotronKeys},
    {.model_type = "olmo",
     .layer_norm = true,
     .bias = AttentionBias::kByKey,
     .read_own_parts = read_olmo_parts,
     .without_effect = kOlmoKeys},
    {.model_type = "olmo2",
     .qk_norm = true,
     .norms_all_heads = true,
     .norms_after = true,
     .bias = AttentionBias::kByKey,
     .without_effect = kOlmoKeys},
    {.model_type = "olmo3",
     .window = 4096,
     .window_pattern = 4,
     .qk_norm = true,
     .norms_all_heads = true,
     .norms_after = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_by_pattern,
     .without_effect = kOlmoKeys},
    {.model_type = "orion", .layer_norm = true, .bias = AttentionBias::kByKey},
    {.model_type = "phi",
     .rotary_share = 0.5,
     .gated_ffn = false,
     .activation = Activation::kNewGelu,
     .activation_key = "hidden_act",
     .ffn_bias = true,
     .has_head_bias = true,
     .norms_per_layer = 1,
     .parallel_ffn = true,
     .layer_norm = true,
     .bias = AttentionBias::kAlways,
     .read_own_parts = read_phi_parts,
     .without_effect = kLayerNormKeys},
    also_named("qwen2_5_vl_text", kQwen2Vl),
    kQwen2Vl,
    {.model_type = "stablelm",
     .rotary_share = 0.25,
     .layer_norm = true,
     .bias = AttentionBias::kQkvByUseKey,
     .read_own_parts = read_stablelm_parts,
     .without_effect = kLayerNormKeys},
    {.model_type = "starcoder2",
     .num_kv_heads = 2,
     .tied_embeddings = true,
     .gated_ffn = false,
     .activation = Activation::kGelu,
     .ffn_bias_key = "use_bias",
     .ffn_bias = true,
     .attention_bias = true,
     .layer_norm = true,
     .bias = AttentionBias::kByUseBias,
     .read_windows = read_windows_of_all_layers,
     .without_effect = kStarcoderKeys},
});

}  // namespace

std::span<const ModelFamily> dense_families() {
  return kRows;
}

}  // namespace shardplan
