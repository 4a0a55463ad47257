// Defaults: huggingface/transformers 5.17, models/<family>/configuration_<family>.py; biases and
// norms: modeling_<family>.py beside it. bailing_moe, bailing_moe_v2, deepseek: configuration files
// of inclusionAI/Ling-lite, inclusionAI/Ling-mini-2.0 and deepseek-ai/deepseek-moe-16b-base, and
// the modeling files beside them.
#include "data/models/families/mixtures.h"

#include <algorithm>
#include <array>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/layers.h"

namespace shardplan {
namespace {

using Keys = std::string_view;

constexpr std::array kRouterKeys =
    std::to_array<Keys>({"input_jitter_noise", "norm_topk_prob", "output_router_logits",
                         "router_aux_loss_coef", "router_jitter_noise"});

constexpr std::array kMinimaxM2Keys = std::to_array<Keys>(
    {"attn_type_list", "layernorm_full_attention_beta", "layernorm_linear_attention_beta",
     "layernorm_mlp_beta", "max_model_len", "mlp_intermediate_size", "mtp_transformer_layers",
     "output_router_logits", "postnorm", "qk_norm_type", "rotary_dim", "router_aux_loss_coef",
     "router_jitter_noise", "scoring_func", "shared_moe_mode", "sliding_window", "use_grouped_topk",
     "use_mtp", "use_qk_norm"});

constexpr std::array kErnieKeys =
    std::to_array<Keys>({"moe_capacity", "moe_gate", "moe_gate_act", "moe_norm_min",
                         "moe_use_aux_free", "output_router_logits", "router_aux_loss_coef"});

constexpr std::array kHunyuanOwnKeys = std::to_array<OwnKey>({
    {.usual = "head_dim", .own = "attention_head_dim"},
});
constexpr std::array kHunyuanKeys = std::to_array<Keys>({"anyres_pooling_size",
                                                         "anyres_vit_max_image_size",
                                                         "anyres_vit_two_views",
                                                         "attention_head_dim",
                                                         "capacity_factor",
                                                         "cla_share_factor",
                                                         "enable_lm_head_fp32",
                                                         "eod_token_id",
                                                         "group_limited_greedy",
                                                         "im_end_id",
                                                         "im_newline_id",
                                                         "im_start_id",
                                                         "kv_lora_rank",
                                                         "mask_init_id",
                                                         "mlp_bias",
                                                         "moe_drop_tokens",
                                                         "moe_layer_num_skipped",
                                                         "moe_random_routing_dropped_token",
                                                         "n_group",
                                                         "norm_topk_prob",
                                                         "norm_type",
                                                         "num_media_embeds",
                                                         "org_vocab_size",
                                                         "pool_type",
                                                         "position_embedding_xdrope",
                                                         "q_lora_rank",
                                                         "qk_nope_head_dim",
                                                         "qk_rope_head_dim",
                                                         "routed_scaling_factor",
                                                         "skip_cls_token",
                                                         "text_end_id",
                                                         "text_start_id",
                                                         "topk_group",
                                                         "use_cla",
                                                         "use_mixed_mlp_moe",
                                                         "use_mla",
                                                         "use_qk_norm",
                                                         "use_rotary_pos_emb",
                                                         "v_head_dim",
                                                         "vit_add_patchemb_bias",
                                                         "vit_input_resolution",
                                                         "vit_mapping_type",
                                                         "vit_norm_type",
                                                         "vit_patch",
                                                         "vit_path",
                                                         "vit_remove_prenorm",
                                                         "vit_token",
                                                         "vit_type",
                                                         "vit_used_rms_norm",
                                                         "xdrope_section"});

constexpr std::array kGraniteKeys =
    std::to_array<Keys>({"attention_multiplier", "embedding_multiplier", "output_router_logits",
                         "residual_multiplier", "router_aux_loss_coef"});
// Logits over a number are kept once more.
constexpr std::array kGraniteScaling = std::to_array<Keys>({"logits_scaling"});

constexpr std::array kOlmoeKeys = std::to_array<Keys>(
    {"clip_qkv", "norm_topk_prob", "output_router_logits", "router_aux_loss_coef"});

constexpr std::array kDeepseekKeys =
    std::to_array<Keys>({"aux_loss_alpha", "intermediate_size", "max_window_layers",
                         "norm_topk_prob", "output_router_logits", "routed_scaling_factor",
                         "router_aux_loss_coef", "scoring_func", "seq_aux"});

constexpr std::array kAfmoeKeys =
    std::to_array<Keys>({"load_balance_coeff", "mup_enabled", "n_group", "num_expert_groups",
                         "num_limited_groups", "output_router_logits", "route_norm", "route_scale",
                         "score_func", "topk_group", "use_grouped_mm"});

constexpr std::array kHunyuan3Keys = std::to_array<Keys>(
    {"enable_attention_fp32_softmax", "enable_lm_head_fp32", "enable_moe_fp32_combine", "mlp_bias",
     "moe_router_enable_expert_bias", "moe_router_use_sigmoid", "output_router_logits", "qk_norm",
     "route_norm", "router_scaling_factor", "use_grouped_mm"});

constexpr std::array kBailingKeys = std::to_array<Keys>(
    {"embedding_dropout", "moe_router_enable_expert_bias", "moe_router_topk_scaling_factor",
     "mtp_loss_scaling_factor", "norm_head", "norm_softmax", "norm_topk_prob", "output_dropout",
     "output_router_logits", "routed_scaling_factor", "router_dtype", "score_function",
     "sliding_window", "use_bias", "use_rmsnorm", "use_sliding_window"});

// Modules of prediction are as many as num_mtp_modules, of mtp_transformer_layers each.
void read_minimax_m2_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::int64_t head_dim = reading.model.head_dim;
  const std::int64_t rotary =
      fields.integer_or("rotary_dim", std::min<std::int64_t>(64, head_dim), 1, head_dim);
  reading.model.rotary_share = static_cast<double>(rotary) / static_cast<double>(head_dim);
  reading.model.num_mtp_layers = integer_or_null(reading, "num_mtp_modules", 0, 0, kMaxMtpLayers);
}

// Published models have no biases; those of shared experts are not counted.
void read_ernie_parts(ConfigReading& reading) {
  if (reading.fields.boolean_or("use_bias", false)) {
    throw reading.fields.error("use_bias", "found true, expected false for ernie4_5_moe");
  }
  const auto modules = integer_or_null(reading, "num_nextn_predict_layers", 0, 0, kMaxMtpLayers);
  reading.model.num_mtp_layers = modules;
}

void read_phimoe_parts(ConfigReading& reading) {
  reading.model.head_bias = reading.fields.boolean_or("lm_head_bias", false);
}

// Shared experts have one width, the routed ones another; every layer after the first dense ones.
void read_bailing_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  read_deepseek_experts(reading);
  MoeSpec& moe = reading.model.moe;
  const std::int64_t width =
      integer_or_null(reading, "moe_shared_expert_intermediate_size", 0, 0, kMaxFfn);
  if (width > 0) {
    moe.shared_ffn = moe.shared_ffn / moe.expert_ffn * width;
  }
  moe.router_bias = fields.boolean_or("moe_router_enable_expert_bias", moe.router_bias);
  reading.model.qk_norm = fields.boolean_or("use_qk_norm", reading.family.qk_norm);
}

// Experts behind the first num_dense_layers; attention to all before in every
// global_attn_every_n_layers-th layer.
void read_afmoe_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  read_routed(reading);
  model.moe.shared_ffn =
      fields.integer_or("num_shared_experts", 2, 0, kMaxExperts) * model.moe.expert_ffn;
  const std::int64_t first = fields.integer_or("num_dense_layers", 1, 0, model.num_layers());
  for (std::int64_t i = first; i < model.num_layers(); ++i) {
    model.layers[static_cast<std::size_t>(i)].is_moe = true;
  }
}

void read_afmoe_windows(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  const std::int64_t interval =
      reading.fields.integer_or("global_attn_every_n_layers", 4, 1, kMaxLayers);
  if (!read_layer_types(reading, {.sliding = window})) {
    put_windows(reading, window, interval);
  }
  for (LayerSpec& layer : reading.model.layers) { layer.has_rotary = layer.attention_window > 0; }
}

constexpr ModelFamily kGraniteMoe = {.model_type = "granitemoe",
                                     .moe = {.num_experts = 8, .topk = 2},
                                     .num_experts_key = "num_local_experts",
                                     .bias = AttentionBias::kByKey,
                                     .read_experts = read_mixtral_experts,
                                     .without_effect = kGraniteKeys,
                                     .not_counted = kGraniteScaling};

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "afmoe",
     .head_dim = 128,
     .window = 1024,
     .moe = {.num_experts = 64, .topk = 6, .expert_ffn = 1408, .router_bias = true},
     .qk_norm = true,
     .attention_gate = AttentionGate::kPerElement,
     .norms_per_layer = 4,
     .bias = AttentionBias::kByKey,
     .read_experts = read_afmoe_experts,
     .read_windows = read_afmoe_windows,
     .without_effect = kAfmoeKeys},
    {.model_type = "bailing_moe",
     .num_shared_experts = 2,
     .moe = {.num_experts = 64, .topk = 6, .expert_ffn = 1408},
     .bias = AttentionBias::kByUseQkvAndUse,
     .read_experts = read_bailing_experts,
     .without_effect = kBailingKeys},
    {.model_type = "bailing_moe_v2",
     .rotary_share = 0.5,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 256,
             .topk = 8,
             .num_groups = 8,
             .topk_groups = 4,
             .expert_ffn = 512,
             .router_bias = true},
     .qk_norm = true,
     .bias = AttentionBias::kByUseQkvAndUse,
     .read_experts = read_bailing_experts,
     .without_effect = kBailingKeys},
    {.model_type = "deepseek",
     .num_shared_experts = 2,
     .moe = {.num_experts = 64, .topk = 6, .expert_ffn = 1408},
     .num_experts_key = "n_routed_experts",
     .bias = AttentionBias::kByKey,
     .read_experts = read_deepseek_experts,
     .without_effect = kDeepseekKeys},
    {.model_type = "dots1",
     .window = 4096,
     .moe = {.router_bias = true},
     .num_experts_key = "n_routed_experts",
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_deepseek_experts,
     .read_windows = read_windows_of_layer_types,
     .without_effect = kDeepseekKeys},
    {.model_type = "ernie4_5_moe",
     .num_kv_heads = 4,
     .moe = {.num_experts = 64, .topk = 6, .expert_ffn = 1536, .router_bias = true},
     .num_experts_key = "moe_num_experts",
     .tied_embeddings = true,
     .ffn_bias_key = "use_bias",
     .bias = AttentionBias::kByUseBias,
     .read_experts = read_ernie_experts,
     .read_own_parts = read_ernie_parts,
     .without_effect = kErnieKeys},
    {.model_type = "exaone_moe",
     .window = 4096,
     .window_pattern = 4,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 64, .topk = 8, .expert_ffn = 1024, .router_bias = true},
     .qk_norm = true,
     .read_experts = read_deepseek_experts,
     .read_windows = read_windows_with_positions,
     .without_effect = kDeepseekKeys},
    {.model_type = "flex_olmo",
     .moe = {.num_experts = 7, .topk = 5},
     .qk_norm = true,
     .norms_all_heads = true,
     .norms_after = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_mixtral_experts,
     .without_effect = kOlmoeKeys},
    {.model_type = "glm4v_moe_text",
     .vocab = 151424,
     .hidden = 4096,
     .ffn = 10944,
     .num_layers = 46,
     .num_heads = 96,
     .num_kv_heads = 8,
     .rotary_share = 0.5,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 128, .topk = 8, .expert_ffn = 1408, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .attention_bias = true,
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_deepseek_experts,
     .without_effect = kDeepseekKeys},
    kGraniteMoe,
    also_named("granitemoeshared", kGraniteMoe),
    {.model_type = "hunyuan_v1_moe",
     .own_keys = kHunyuanOwnKeys,
     .moe = {.num_experts = 1, .topk = 1},
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_hunyuan_experts,
     .without_effect = kHunyuanKeys},
    {.model_type = "hy_v3",
     .num_kv_heads = 8,
     .head_dim = 128,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 192, .topk = 8, .expert_ffn = 1536, .router_bias = true},
     .qk_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_deepseek_experts,
     .without_effect = kHunyuan3Keys},
    {.model_type = "minimax_m2",
     .num_kv_heads = 8,
     .head_dim = 128,
     .moe = {.num_experts = 256, .topk = 8, .router_bias = true},
     .num_experts_key = "num_local_experts",
     .qk_norm = true,
     .norms_all_heads = true,
     .read_experts = read_mixtral_experts,
     .read_own_parts = read_minimax_m2_parts,
     .without_effect = kMinimaxM2Keys},
    {.model_type = "olmoe",
     .moe = {.num_experts = 64, .topk = 8},
     .qk_norm = true,
     .norms_all_heads = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_mixtral_experts,
     .without_effect = kOlmoeKeys},
    {.model_type = "phimoe",
     .num_kv_heads = 8,
     .moe = {.num_experts = 16, .topk = 2},
     .num_experts_key = "num_local_experts",
     .layer_norm = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_mixtral_experts,
     .read_windows = read_windows_of_all_layers,
     .read_own_parts = read_phimoe_parts,
     .without_effect = kRouterKeys},
    {.model_type = "solar_open",
     .needs_no_ffn = true,
     .num_kv_heads = 8,
     .head_dim = 128,
     .num_shared_experts = 1,
     .moe = {.num_experts = 128, .topk = 8, .expert_ffn = 1280, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_deepseek_experts,
     .without_effect = kDeepseekKeys},
});

}  // namespace

std::span<const ModelFamily> mixture_families() {
  return kRows;
}

}  // namespace shardplan
