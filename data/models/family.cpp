// Defaults: huggingface/transformers 4.57.1 and 5.x, models/<family>/configuration_<family>.py;
// biases and norms: modeling_<family>.py beside it.
#include "data/models/family.h"

#include <array>

#include "data/models/layers.h"

namespace shardplan {

namespace {

constexpr std::array kCommonKeys = std::to_array<std::string_view>({
    // Names and versions.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "attention_implementation",
    "name_or_path",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "trust_remote_code",
    "unsloth_fixed",
    "unsloth_version",
    // Tokens.
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "suppress_tokens",
    "unk_token_id",
    // Numerics: no tensor of its own.
    "attention_dropout",
    "hidden_act",
    "hidden_activation",
    "initializer_range",
    "pretraining_tp",
    "rms_norm_eps",
    // Rotary position embeddings: buffers of [sequence, head_dim], not parameters.
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    // Generation, other tasks, output switches of PretrainedConfig.
    "add_cross_attention",
    "bad_words_ids",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "top_k",
    "top_p",
    "torchscript",
    "typical_p",
    "use_bfloat16",
    "use_cache",
});

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
    {"attention_multiplier", "embedding_multiplier", "residual_multiplier"});
constexpr std::array kGraniteScaling = std::to_array<std::string_view>({"logits_scaling"});

// Layers without rotary embeddings differ in nothing that is counted.
constexpr std::array kSmolLm3Keys = std::to_array<std::string_view>(
    {"max_window_layers", "no_rope_layer_interval", "no_rope_layers"});

constexpr std::array kSeedOssKeys = std::to_array<std::string_view>({"residual_dropout"});

constexpr std::array kGlm4MoeKeys = std::to_array<std::string_view>(
    {"norm_topk_prob", "output_router_logits", "routed_scaling_factor", "router_aux_loss_coef"});

constexpr std::array kLlama4Keys = std::to_array<std::string_view>(
    {"attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor",
     "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "use_qk_norm"});

constexpr std::array kFamilies = std::to_array<ModelFamily>({
    {.model_type = "llama",
     .ffn_bias_key = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows,
     .without_effect = kLlamaKeys},
    {.model_type = "mistral",
     .vocab = 32000,
     .hidden = 4096,
     .ffn = 14336,
     .num_layers = 32,
     .num_heads = 32,
     .num_kv_heads = 8,
     .window = 4096,
     .read_experts = read_no_experts,
     .read_windows = read_windows_of_all_layers},
    {.model_type = "mixtral",
     .num_kv_heads = 8,
     .moe = {.num_experts = 8, .topk = 2},
     .num_experts_key = "num_local_experts",
     .read_experts = read_mixtral_experts,
     .read_windows = read_windows_of_all_layers,
     .without_effect = kRouterKeys},
    {.model_type = "qwen2",
     .num_kv_heads = 32,
     .window = 4096,
     .bias = AttentionBias::kQkvAlways,
     .read_experts = read_no_experts,
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
     .read_experts = read_no_experts,
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
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows},
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
     .read_windows = read_no_windows,
     .without_effect = kQwenMoeKeys},
    {.model_type = "deepseek_v2",
     .num_shared_experts = 2,
     .moe = {.num_experts = 64, .expert_ffn = 1407},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_no_windows,
     .without_effect = kDeepseekKeys},
    // The bias that steers the choice of experts is counted as a parameter, as DeepSeek does
    // (inference/model.py, class Gate; the stated total of 671,026,419,200 includes it).
    {.model_type = "deepseek_v3",
     .num_shared_experts = 1,
     .num_first_dense = 3,
     .moe = kDeepseekV3Experts,
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_no_windows,
     .without_effect = kDeepseekKeys},
    // DeepSeek-V3 with other sizes and its own model_type; configuration_deepseek.py of
    // moonshotai/Kimi-K2-Instruct.
    {.model_type = "kimi_k2",
     .num_shared_experts = 1,
     .num_first_dense = 3,
     .moe = kDeepseekV3Experts,
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_no_windows,
     .without_effect = kDeepseekKeys},
    // One product for q, k and v, and one for gate and up, as the frameworks have them anyway.
    {.model_type = "phi3",
     .read_experts = read_no_experts,
     .read_windows = read_windows_of_all_layers,
     .without_effect = kPhi3Keys},
    {.model_type = "granite",
     .ffn_bias_key = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows,
     .without_effect = kGraniteKeys,
     .not_counted = kGraniteScaling},
    {.model_type = "smollm3",
     .num_kv_heads = 4,
     .tied_embeddings = true,
     .ffn_bias_key = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
     .read_windows = read_windows_of_layer_types,
     .without_effect = kSmolLm3Keys},
    {.model_type = "seed_oss",
     .num_kv_heads = 8,
     .head_dim = 128,
     .ffn_bias_key = true,
     .attention_bias = true,
     .bias = AttentionBias::kByTwoKeys,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows,
     .without_effect = kSeedOssKeys},
    {.model_type = "glm4",
     .num_kv_heads = 2,
     .head_dim = 128,
     .attention_bias = true,
     .norms_per_layer = 4,
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows},
    {.model_type = "glm4_moe",
     .num_kv_heads = 8,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 128, .topk = 8, .expert_ffn = 1408, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .qk_norm_key = true,
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_deepseek_experts,
     .read_windows = read_no_windows,
     .without_effect = kGlm4MoeKeys},
    {.model_type = "gemma",
     .num_kv_heads = 16,
     .head_dim = 256,
     .tied_embeddings = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
     .read_windows = read_no_windows},
    {.model_type = "gemma2",
     .num_kv_heads = 4,
     .head_dim = 256,
     .window = 4096,
     .window_pattern = 2,
     .tied_embeddings = true,
     .norms_per_layer = 4,
     .soft_caps = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
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
     .qk_norm = true,
     .norms_per_layer = 4,
     .bias = AttentionBias::kByKey,
     .read_experts = read_no_experts,
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

void ConfigReading::warn(std::string_view key, const std::string& text) {
  warnings.emplace_back(fields.error(key, text).what());
}

std::span<const ModelFamily> model_families() {
  return kFamilies;
}

std::span<const std::string_view> keys_without_effect() {
  return kCommonKeys;
}

}  // namespace shardplan
