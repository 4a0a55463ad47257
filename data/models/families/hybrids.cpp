// Defaults: huggingface/transformers 5.17, models/<family>/configuration_<family>.py; shapes:
// modeling_<family>.py beside it. minimax_text_01 and minimax_m1: configuration files of
// MiniMaxAI/MiniMax-Text-01 and MiniMax-M1-80k.
#include "data/models/families/hybrids.h"

#include <algorithm>
#include <array>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/mixers.h"

namespace shardplan {
namespace {

using Keys = std::string_view;

constexpr std::array kQwenKeys = std::to_array<Keys>(
    {"attn_output_gate", "linear_attn_a_log_max", "mamba_ssm_dtype", "mlp_only_layers",
     "mtp_use_dedicated_embeddings", "norm_topk_prob", "output_gate_type", "output_gate_type",
     "output_router_logits", "rope_theta", "router_aux_loss_coef", "use_sliding_window"});

constexpr std::array kMinimaxKeys = std::to_array<Keys>({"block_size",
                                                         "full_attn_alpha_factor",
                                                         "full_attn_beta_factor",
                                                         "layernorm_full_attention_alpha",
                                                         "layernorm_full_attention_beta",
                                                         "layernorm_linear_attention_alpha",
                                                         "layernorm_linear_attention_beta",
                                                         "layernorm_mlp_alpha",
                                                         "layernorm_mlp_beta",
                                                         "linear_attn_alpha_factor",
                                                         "linear_attn_beta_factor",
                                                         "max_model_len",
                                                         "mlp_alpha_factor",
                                                         "mlp_beta_factor",
                                                         "output_router_logits",
                                                         "postnorm",
                                                         "rotary_dim",
                                                         "router_aux_loss_coef",
                                                         "router_jitter_noise",
                                                         "shared_moe_mode",
                                                         "sliding_window"});

constexpr std::array kNemotronKeys = std::to_array<Keys>({"expand",
                                                          "hidden_dropout",
                                                          "layer_norm_epsilon",
                                                          "mamba_hidden_act",
                                                          "mamba_ssm_cache_dtype",
                                                          "mlp_hidden_act",
                                                          "moe_shared_expert_overlap",
                                                          "mtp_hybrid_override_pattern",
                                                          "mtp_layers_block_type",
                                                          "n_shared_experts",
                                                          "norm_eps",
                                                          "norm_topk_prob",
                                                          "num_logits_to_keep",
                                                          "num_query_groups",
                                                          "rescale_prenorm_residual",
                                                          "residual_in_fp32",
                                                          "routed_scaling_factor",
                                                          "sliding_window",
                                                          "time_step_floor",
                                                          "time_step_limit",
                                                          "time_step_max",
                                                          "time_step_min",
                                                          "time_step_rank",
                                                          "use_mamba_kernels"});

constexpr std::array kNemotronOwnKeys = std::to_array<OwnKey>({
    {.usual = "head_dim", .own = "attention_head_dim"},
});

constexpr std::array kMambaKeys = std::to_array<Keys>(
    {"layers_block_type", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "num_logits_to_keep",
     "partial_rotary_factor", "time_step_floor", "time_step_limit", "time_step_max",
     "time_step_min", "z_loss_coefficient", "mamba_expand"});

constexpr std::array kFalconKeys = std::to_array<Keys>(
    {"attention_in_multiplier", "attention_out_multiplier", "attn_layer_indices",
     "embedding_multiplier", "key_multiplier", "lm_head_multiplier", "mamba_norm_before_gate",
     "mamba_use_mlp", "mlp_expansion_factor", "mlp_multipliers", "num_logits_to_keep",
     "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier", "time_step_floor",
     "time_step_limit", "time_step_max", "time_step_min"});

constexpr std::array kGraniteKeys = std::to_array<Keys>(
    {"attention_multiplier", "embedding_multiplier", "init_method", "normalization_function",
     "output_router_logits", "residual_multiplier", "router_aux_loss_coef", "time_step_floor",
     "time_step_limit", "time_step_max", "time_step_min"});
// Logits over a number are kept once more.
constexpr std::array kGraniteScaling = std::to_array<Keys>({"logits_scaling"});

constexpr std::array kJambaKeys =
    std::to_array<Keys>({"attn_layer_period", "calc_logits_for_entire_prompt", "layers_block_type",
                         "mamba_inner_layernorms", "n_ctx", "num_logits_to_keep",
                         "output_router_logits", "router_aux_loss_coef", "sliding_window",
                         "use_associative_scan", "use_mamba_kernels", "use_mambapy"});

constexpr std::array kLfmOwnKeys = std::to_array<OwnKey>({
    {.usual = "intermediate_size", .own = "block_ff_dim"},
    {.usual = "tie_word_embeddings", .own = "tie_embedding"},
});
constexpr std::array kLfmKeys = std::to_array<Keys>({"block_auto_adjust_ff_dim",
                                                     "block_dim",
                                                     "block_ffn_dim_multiplier",
                                                     "block_mlp_init_scale",
                                                     "block_multiple_of",
                                                     "block_norm_eps",
                                                     "block_out_init_scale",
                                                     "block_use_swiglu",
                                                     "block_use_xavier_init",
                                                     "conv_dim",
                                                     "conv_dim_out",
                                                     "conv_use_xavier_init",
                                                     "eos_token_id",
                                                     "norm_eps",
                                                     "norm_topk_prob",
                                                     "num_heads",
                                                     "use_expert_bias",
                                                     "rope_theta",
                                                     "routed_scaling_factor",
                                                     "theta",
                                                     "use_pos_enc"});

constexpr std::array kOlmoKeys = std::to_array<Keys>(
    {"linear_a_log_max", "linear_a_log_min", "linear_allow_neg_eigval", "linear_dt_init_floor",
     "linear_dt_max", "linear_dt_min", "linear_use_gate"});

// Two thirds of the stated width times a factor, rounded up to a multiple.
void read_lfm2_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const bool adjusts = fields.boolean_or("block_auto_adjust_ff_dim", true);
  const double factor = fields.number_or("block_ffn_dim_multiplier", 1, 0, 64);
  const std::int64_t multiple = fields.integer_or("block_multiple_of", 256, 1, kMaxFfn);
  if (adjusts) {
    const std::int64_t share = 2 * reading.model.ffn / 3;
    const auto scaled = static_cast<std::int64_t>(factor * static_cast<double>(share));
    reading.model.ffn = std::max<std::int64_t>((scaled + multiple - 1) / multiple, 1) * multiple;
  }
}

// Prediction modules are layers with full attention, as the last of each four is.
void read_qwen3_5_parts(ConfigReading& reading) {
  reading.model.num_mtp_layers =
      reading.fields.integer_or("mtp_num_hidden_layers", 0, 0, kMaxMtpLayers);
}

void read_qwen3_5_experts(ConfigReading& reading) {
  read_qwen_experts(reading);
  for (LayerSpec& layer : reading.model.layers) { layer.is_moe = true; }
}

// A module of prediction is an attention layer and an expert layer, which no row describes.
void read_nemotron_parts(ConfigReading& reading) {
  const std::string_view key = "num_nextn_predict_layers";
  if (reading.fields.integer_or(key, 0, 0, kMaxMtpLayers) > 0) {
    reading.warn(key, "found " + describe(reading.fields.value(key)) +
                          ": modules of multi-token prediction are not counted");
  }
}

constexpr ModelFamily kMinimaxText01 = {.model_type = "minimax_text_01",
                                        .num_kv_heads = 8,
                                        .mixer = MixerKind::kLightning,
                                        .moe = {.num_experts = 32, .topk = 2},
                                        .num_experts_key = "num_local_experts",
                                        .read_experts = read_mixtral_experts,
                                        .read_windows = read_lightning_layers,
                                        .without_effect = kMinimaxKeys};

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "bamba",
     .num_kv_heads = 8,
     .rotary_share = 0.5,
     .mixer = MixerKind::kMamba2,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_bamba_layers,
     .without_effect = kMambaKeys},
    {.model_type = "falcon_h1",
     .num_kv_heads = 8,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_falcon_h1_layers,
     .without_effect = kFalconKeys},
    {.model_type = "granitemoehybrid",
     .mixer = MixerKind::kMamba2,
     .attention_word = "attention",
     .moe = {.num_experts = 8, .topk = 2},
     .num_experts_key = "num_local_experts",
     .bias = AttentionBias::kByKey,
     .read_experts = read_granite_experts,
     .read_windows = read_granite_hybrid_layers,
     .without_effect = kGraniteKeys,
     .not_counted = kGraniteScaling},
    {.model_type = "jamba",
     .num_kv_heads = 8,
     .mixer = MixerKind::kMamba1,
     .moe = {.num_experts = 16, .topk = 2},
     .read_experts = read_jamba_experts,
     .read_windows = read_jamba_layers,
     .without_effect = kJambaKeys},
    {.model_type = "lfm2",
     .vocab = 65536,
     .hidden = 2560,
     .ffn = 12288,
     .num_layers = 32,
     .num_heads = 32,
     .own_keys = kLfmOwnKeys,
     .num_kv_heads = 8,
     .mixer = MixerKind::kShortConvolution,
     .mixer_word = "conv",
     .tied_embeddings = true,
     .qk_norm = true,
     .read_windows = read_convolution_layers,
     .read_own_parts = read_lfm2_parts,
     .without_effect = kLfmKeys},
    {.model_type = "lfm2_moe",
     .own_keys = kLfmOwnKeys,
     .num_kv_heads = 8,
     .mixer = MixerKind::kShortConvolution,
     .mixer_word = "conv",
     .moe = {.num_experts = 32, .topk = 4, .expert_ffn = 1792},
     .tied_embeddings = true,
     .qk_norm = true,
     .read_experts = read_lfm2_experts,
     .read_windows = read_convolution_layers,
     .without_effect = kLfmKeys},
    {.model_type = "minimax",
     .num_kv_heads = 8,
     .mixer = MixerKind::kLightning,
     .moe = {.num_experts = 8, .topk = 2},
     .num_experts_key = "num_local_experts",
     .read_experts = read_mixtral_experts,
     .read_windows = read_lightning_layers,
     .without_effect = kMinimaxKeys},
    also_named("minimax_m1", kMinimaxText01),
    kMinimaxText01,
    // The bias that steers the choice of experts is a buffer, which published totals leave out.
    {.model_type = "nemotron_h",
     .own_keys = kNemotronOwnKeys,
     .count_layers = count_pattern_layers,
     .num_kv_heads = 8,
     .head_dim = 128,
     .mixer = MixerKind::kMamba2,
     .moe = {.num_experts = 8, .topk = 2, .expert_ffn = 7688},
     .num_experts_key = "n_routed_experts",
     .gated_ffn = false,
     .activation = Activation::kReluSquared,
     .ffn_bias_key = "mlp_bias",
     .norms_per_layer = 1,
     .bias = AttentionBias::kByKey,
     .read_experts = read_nemotron_experts,
     .read_windows = read_pattern_layers,
     .read_own_parts = read_nemotron_parts,
     .without_effect = kNemotronKeys},
    {.model_type = "olmo_hybrid",
     .mixer = MixerKind::kGatedDelta,
     .qk_norm = true,
     .norms_all_heads = true,
     .norms_after = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_gated_delta_layers,
     .without_effect = kOlmoKeys},
    {.model_type = "qwen3_5_moe_text",
     .vocab = 248320,
     .hidden = 2048,
     .num_layers = 40,
     .num_heads = 16,
     .needs_no_ffn = true,
     .num_kv_heads = 2,
     .head_dim = 256,
     .rotary_share = 0.25,
     .mixer = MixerKind::kGatedDelta,
     .moe =
         {.num_experts = 256, .topk = 8, .expert_ffn = 512, .shared_ffn = 512, .shared_gate = true},
     .qk_norm = true,
     .attention_gate = AttentionGate::kPerElement,
     .bias = AttentionBias::kByKey,
     .read_experts = read_qwen3_5_experts,
     .read_windows = read_gated_delta_layers,
     .read_own_parts = read_qwen3_5_parts,
     .without_effect = kQwenKeys},
    {.model_type = "qwen3_5_text",
     .vocab = 248320,
     .hidden = 4096,
     .ffn = 12288,
     .num_layers = 32,
     .num_heads = 16,
     .num_kv_heads = 4,
     .head_dim = 256,
     .rotary_share = 0.25,
     .mixer = MixerKind::kGatedDelta,
     .qk_norm = true,
     .attention_gate = AttentionGate::kPerElement,
     .bias = AttentionBias::kByKey,
     .read_windows = read_gated_delta_layers,
     .read_own_parts = read_qwen3_5_parts,
     .without_effect = kQwenKeys},
    {.model_type = "qwen3_next",
     .num_kv_heads = 2,
     .head_dim = 256,
     .rotary_share = 0.25,
     .mixer = MixerKind::kGatedDelta,
     .moe = {.num_experts = 512,
             .topk = 10,
             .expert_ffn = 512,
             .shared_ffn = 512,
             .shared_gate = true},
     .qk_norm = true,
     .attention_gate = AttentionGate::kPerElement,
     .bias = AttentionBias::kByKey,
     .read_experts = read_qwen_experts,
     .read_windows = read_gated_delta_layers,
     .without_effect = kQwenKeys},
});

}  // namespace

std::span<const ModelFamily> hybrid_families() {
  return kRows;
}

}  // namespace shardplan
