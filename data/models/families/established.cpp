// Llama and the families that differ from it in biases, norms, windows and experts. Defaults:
// huggingface/transformers 4.57.1 and 5.x, models/<family>/configuration_<family>.py; biases and
// norms: modeling_<family>.py beside it.
#include "data/models/families/established.h"

#include <array>

#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/layers.h"

namespace shardplan {
namespace {

constexpr std::array kLlamaKeys =
    std::to_array<std::string_view>({"is_llama_config", "max_sequence_length", "rope_interleaved"});

constexpr std::array kQwen2Keys = std::to_array<std::string_view>({"use_mrope"});

constexpr std::array kRouterKeys = std::to_array<std::string_view>(
    {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"});

constexpr std::array kQwenMoeKeys = std::to_array<std::string_view>(
    {"norm_topk_prob", "output_router_logits", "router_aux_loss_coef"});

constexpr std::array kDeepseekKeys = std::to_array<std::string_view>(
    {"aux_loss_alpha", "ep_size", "head_dim", "norm_topk_prob", "output_router_logits",
     "qk_head_dim", "rope_interleave", "routed_scaling_factor", "scoring_func", "seq_aux"});

constexpr MoeSpec kDeepseekV3Experts = {.num_experts = 256,
                                        .topk = 8,
                                        .num_groups = 8,
                                        .topk_groups = 4,
                                        .expert_ffn = 2048,
                                        .router_bias = true};

constexpr std::array kGemmaKeys = std::to_array<std::string_view>(
    {"query_pre_attn_scalar", "sliding_window_size", "rope_local_base_freq"});

// Each keeps logits or scores once more; scores only where attention is eager.
constexpr std::array kSoftCaps =
    std::to_array<std::string_view>({"attn_logit_softcapping", "final_logit_softcapping"});

constexpr std::array kPhi3Keys =
    std::to_array<std::string_view>({"embd_pdrop", "full_attn_mod", "interpolate_factor",
                                     "original_max_position_embeddings", "resid_pdrop"});

// Embeddings, scores and sums of a residual times a number; logits over one are kept once more.
constexpr std::array kGraniteKeys = std::to_array<std::string_view>(
    {"attention_multiplier", "embedding_multiplier", "layer_rope_theta", "residual_multiplier"});
constexpr std::array kGraniteScaling = std::to_array<std::string_view>({"logits_scaling"});

constexpr std::array kSmolLm3Keys = std::to_array<std::string_view>({"max_window_layers"});

constexpr std::array kSeedOssKeys = std::to_array<std::string_view>({"residual_dropout"});

constexpr std::array kGlm4MoeKeys = std::to_array<std::string_view>(
    {"norm_topk_prob", "output_router_logits", "routed_scaling_factor", "router_aux_loss_coef"});

constexpr std::array kLlama4Keys = std::to_array<std::string_view>(
    {"attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor",
     "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "use_qk_norm"});

// The first of every four layers sees everything.
void read_granite_windows(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  if (read_layer_types(reading, {.sliding = window})) {
    return;
  }
  put_windows(reading, window, reading.model.num_layers() + 1);
  for (std::size_t i = 0; i < reading.model.layers.size(); i += 4) {
    reading.model.layers[i].attention_window = 0;
  }
}

void read_granite_sinks(ConfigReading& reading) {
  for (LayerSpec& layer : reading.model.layers) { layer.has_sinks = true; }
}

constexpr ModelFamily kDeepseekV3 = {.model_type = "deepseek_v3",
                                     .num_shared_experts = 1,
                                     .num_first_dense = 3,
                                     .moe = kDeepseekV3Experts,
                                     .num_experts_key = "n_routed_experts",
                                     .attention = AttentionKind::kMla,
                                     .read_experts = read_deepseek_experts,
                                     .without_effect = kDeepseekKeys};

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "llama",
     .vocab = 32000,
     .hidden = 4096,
     .ffn = 11008,
     .num_layers = 32,
     .num_heads = 32,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .without_effect = kLlamaKeys},
    {.model_type = "mistral",
     .vocab = 32000,
     .hidden = 4096,
     .ffn = 14336,
     .num_layers = 32,
     .num_heads = 32,
     .num_kv_heads = 8,
     .window = 4096,
     .read_windows = read_windows_of_all_layers},
    {.model_type = "mixtral",
     .num_kv_heads = 8,
     .moe = {.num_experts = 8, .topk = 2},
     .num_experts_key = "num_local_experts",
     .read_experts = read_mixtral_experts,
     .read_windows = read_windows_of_all_layers,
     .without_effect = kRouterKeys},
    {.model_type = "qwen2",
     .vocab = 151936,
     .hidden = 4096,
     .ffn = 22016,
     .num_layers = 32,
     .num_heads = 32,
     .num_kv_heads = 32,
     .window = 4096,
     .bias = AttentionBias::kQkvAlways,
     .read_windows = read_windows_of_upper_layers,
     .without_effect = kQwen2Keys},
    {.model_type = "qwen2_moe",
     .num_kv_heads = 16,
     .window = 4096,
     .moe = {.num_experts = 60,
             .topk = 4,
             .expert_ffn = 1408,
             .shared_ffn = 5632,
             .shared_gate = true},
     .bias = AttentionBias::kQkvByKey,
     .read_experts = read_qwen_experts,
     .read_windows = read_windows_of_upper_layers,
     .without_effect = kQwenMoeKeys},
    {.model_type = "qwen3",
     .num_kv_heads = 32,
     .head_dim = 128,
     .window = 4096,
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_of_upper_layers},
    // The class has no head_dim: it arrives as an extra key.
    {.model_type = "qwen3_moe",
     .num_kv_heads = 4,
     .window = 4096,
     .moe = {.num_experts = 128, .topk = 8, .expert_ffn = 768},
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_qwen_experts,
     .read_windows = read_windows_if_used,
     .without_effect = kQwenMoeKeys},
    // Qwen3 without windows; what its image encoder adds to hidden states has no weights here.
    {.model_type = "qwen3_vl_text",
     .vocab = 151936,
     .hidden = 4096,
     .ffn = 22016,
     .num_layers = 32,
     .num_heads = 32,
     .num_kv_heads = 32,
     .head_dim = 128,
     .qk_norm = true,
     .bias = AttentionBias::kByKey},
    {.model_type = "qwen3_vl_moe_text",
     .vocab = 151936,
     .hidden = 2048,
     .ffn = 5632,
     .num_layers = 24,
     .num_heads = 16,
     .num_kv_heads = 16,
     .moe = {.num_experts = 60, .topk = 4, .expert_ffn = 1408},
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_qwen_experts,
     .without_effect = kQwenMoeKeys},
    {.model_type = "deepseek_v2",
     .num_shared_experts = 2,
     .moe = {.num_experts = 64, .expert_ffn = 1407},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .without_effect = kDeepseekKeys},
    // The bias that steers the choice of experts is counted as a parameter, as DeepSeek does
    // (inference/model.py, class Gate; the stated total of 671,026,419,200 includes it).
    kDeepseekV3,
    // DeepSeek-V3 with other sizes and its own model_type; configuration_deepseek.py of
    // moonshotai/Kimi-K2-Instruct.
    also_named("kimi_k2", kDeepseekV3),
    // One product for q, k and v, and one for gate and up, as the frameworks have them anyway.
    {.model_type = "phi3", .read_windows = read_windows_of_all_layers, .without_effect = kPhi3Keys},
    {.model_type = "granite",
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .without_effect = kGraniteKeys,
     .not_counted = kGraniteScaling},
    {.model_type = "granite_swa",
     .window = 128,
     .tied_embeddings = true,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_granite_windows,
     .read_own_parts = read_granite_sinks,
     .without_effect = kGraniteKeys,
     .not_counted = kGraniteScaling},
    {.model_type = "cwm",
     .num_kv_heads = 8,
     .head_dim = 128,
     .window = 8192,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_granite_windows},
    {.model_type = "smollm3",
     .num_kv_heads = 4,
     .tied_embeddings = true,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_of_layer_types,
     .read_own_parts = read_rotary_layers,
     .without_effect = kSmolLm3Keys},
    {.model_type = "seed_oss",
     .num_kv_heads = 8,
     .head_dim = 128,
     .ffn_bias_key = "mlp_bias",
     .attention_bias = true,
     .bias = AttentionBias::kByTwoKeys,
     .without_effect = kSeedOssKeys},
    {.model_type = "glm4",
     .num_kv_heads = 2,
     .head_dim = 128,
     .rotary_share = 0.5,
     .attention_bias = true,
     .norms_per_layer = 4,
     .bias = AttentionBias::kQkvByAttentionKey},
    {.model_type = "glm4_moe",
     .num_kv_heads = 8,
     .rotary_share = 0.5,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 128, .topk = 8, .expert_ffn = 1408, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .qk_norm_key = true,
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_deepseek_experts,
     .without_effect = kGlm4MoeKeys},
    {.model_type = "gemma",
     .vocab = 256000,
     .hidden = 3072,
     .ffn = 24576,
     .num_layers = 28,
     .num_heads = 16,
     .num_kv_heads = 16,
     .head_dim = 256,
     .tied_embeddings = true,
     .activation = Activation::kGelu,
     .bias = AttentionBias::kByKey},
    {.model_type = "gemma2",
     .num_kv_heads = 4,
     .head_dim = 256,
     .window = 4096,
     .window_pattern = 2,
     .tied_embeddings = true,
     .activation = Activation::kGelu,
     .norms_per_layer = 4,
     .soft_caps = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_by_pattern,
     .without_effect = kGemmaKeys,
     .not_counted = kSoftCaps},
    {.model_type = "vaultgemma",
     .num_kv_heads = 4,
     .head_dim = 256,
     .window = 4096,
     .window_pattern = 2,
     .tied_embeddings = true,
     .activation = Activation::kGelu,
     .soft_caps = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_by_pattern,
     .without_effect = kGemmaKeys,
     .not_counted = kSoftCaps},
    {.model_type = "gemma3_text",
     .vocab = 262208,
     .hidden = 2304,
     .ffn = 9216,
     .num_layers = 26,
     .num_heads = 8,
     .num_kv_heads = 4,
     .head_dim = 256,
     .window = 4096,
     .window_pattern = 6,
     .tied_embeddings = true,
     .activation = Activation::kGelu,
     .qk_norm = true,
     .norms_per_layer = 4,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_by_pattern,
     .without_effect = kGemmaKeys,
     .not_counted = kSoftCaps},
    // use_qk_norm is an L2 norm without weights.
    {.model_type = "llama4_text",
     .vocab = 202048,
     .hidden = 5120,
     .ffn = 8192,
     .num_layers = 48,
     .num_heads = 40,
     .num_kv_heads = 8,
     .head_dim = 128,
     .moe = {.num_experts = 16, .topk = 1},
     .num_experts_key = "num_local_experts",
     .bias = AttentionBias::kByKey,
     .read_experts = read_llama4_experts,
     .read_windows = read_chunks,
     .without_effect = kLlama4Keys},
});

}  // namespace

std::span<const ModelFamily> established_families() {
  return kRows;
}

}  // namespace shardplan
