// Defaults: huggingface/transformers 5.17, models/<family>/configuration_<family>.py; biases and
// norms: modeling_<family>.py beside it.
#include "data/models/families/uneven_mixtures.h"

#include <array>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/layers.h"

namespace shardplan {
namespace {

using Keys = std::string_view;

constexpr std::array kGptOssKeys =
    std::to_array<Keys>({"experts_per_token", "initial_context_length", "output_router_logits",
                         "router_aux_loss_coef", "swiglu_limit"});

constexpr std::array kMimoV2Keys = std::to_array<Keys>(
    {"add_full_attention_sink_bias", "attention_chunk_size", "attention_value_scale",
     "layernorm_epsilon", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
     "sliding_window_size", "swa_rope_theta", "hybrid_block_size"});

constexpr std::array kMinimaxM3Keys = std::to_array<Keys>(
    {"attention_output_gate", "index_local_blocks", "router_jitter_noise", "first_k_dense_replace",
     "moe_intermediate_size", "n_shared_experts", "num_mtp_modules", "num_nextn_predict_layers",
     "output_router_logits", "qk_norm_type", "rotary_dim", "routed_scaling_factor",
     "router_aux_loss_coef", "scoring_func", "swiglu_alpha", "swiglu_limit", "use_gemma_norm",
     "use_qk_norm"});

constexpr std::array kStepOwnKeys = std::to_array<OwnKey>({
    {.usual = "num_key_value_heads", .own = "num_attention_groups"},
    {.usual = "share_expert_dim", .own = "share_expert_dims"},
});
constexpr std::array kStepKeys = std::to_array<Keys>({"att_impl_type",
                                                      "first_k_dense_replace",
                                                      "n_shared_experts",
                                                      "scoring_func",
                                                      "gating",
                                                      "max_seq_len",
                                                      "max_seq_length",
                                                      "model_max_length",
                                                      "moe_router_activation",
                                                      "moe_router_scaling_factor",
                                                      "mtp_layer_types",
                                                      "mtp_mlp_layer_types",
                                                      "need_fp32_gate",
                                                      "norm_expert_weight",
                                                      "num_nextn_predict_layers",
                                                      "partial_rotary_factors",
                                                      "query_pre_attn_scalar",
                                                      "rope_ntk",
                                                      "sink",
                                                      "swiglu_limits",
                                                      "swiglu_limits_shared",
                                                      "use_bidirectional_attention",
                                                      "use_cca",
                                                      "use_head_wise_attn_gate",
                                                      "use_moe",
                                                      "use_moe_router_bias",
                                                      "use_qk_norm",
                                                      "use_rope_layers",
                                                      "yarn_only_types",
                                                      "zero_centered"});

// Odd-numbered layers have the window, and every layer sinks.
void read_gpt_oss_windows(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  if (!read_layer_types(reading, {.sliding = window})) {
    put_windows(reading, window, 2);
  }
  for (LayerSpec& layer : reading.model.layers) { layer.has_sinks = true; }
}

// Experts of intermediate_size, dense layers of dense_intermediate_size; which are which,
// mlp_layer_types or moe_layer_freq says, and without them all have experts.
void read_minimax_m3_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::int64_t width = model.ffn;
  read_mixtral_experts(reading);
  model.ffn = fields.integer_or("dense_intermediate_size", 12288, 1, kMaxFfn);
  model.moe.expert_ffn = width;
  mark_by_lists(reading);
}

// Blocks of keys that an indexer chooses, in the layers that sparse_attention_freq marks.
void read_minimax_m3_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.indexer = {.num_heads = fields.integer_or("index_n_heads", 4, 1, kMaxHeads),
                   .head_dim = fields.integer_or("index_head_dim", 128, 1, kMaxHeadDim),
                   .topk = fields.integer_or("index_topk_blocks", 16, 1, kMaxWindow),
                   .block_size = fields.integer_or("index_block_size", 128, 1, kMaxWindow)};
  const std::string_view key = "sparse_attention_config";
  if (is_given(reading, key)) {
    ConfigReading inner = section_of(reading, key);
    inner.model.layers.resize(model.layers.size());
    const auto marks = numbers_by_layer(inner, "sparse_attention_freq", 0, 1);
    for (std::size_t i = 0; marks && i < marks->size(); ++i) {
      model.layers[i].has_indexer = (*marks)[i] == 1;
    }
    IndexerSpec& indexer = model.indexer;
    const auto take = [&inner](std::string_view name, std::int64_t& value) {
      value = inner.fields.integer_or(name, value, 1, kMaxWindow);
    };
    take("sparse_num_index_heads", indexer.num_heads);
    take("sparse_index_dim", indexer.head_dim);
    take("sparse_topk_blocks", indexer.topk);
    take("sparse_block_size", indexer.block_size);
  }
  fields.ignore(key);
  const auto types = words_by_layer(reading, "layer_types");
  for (std::size_t i = 0; types && i < types->size(); ++i) {
    model.layers[i].has_indexer = (*types)[i] == "minimax_m3_sparse";
  }
}

// Layers with a window have keys and values of their own number and width, and sinks, as the file
// says (swa_*; the class in transformers takes twice the heads of keys and values).
void read_mimo_v2_windows(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::int64_t window = window_or(reading, "sliding_window", 128);
  const auto pattern = numbers_by_layer(reading, "hybrid_layer_pattern", 0, 1);
  const AttentionHeads full = {.num_heads = model.num_heads,
                               .num_kv_heads = model.num_kv_heads,
                               .qk_head_dim = model.head_dim,
                               .v_head_dim = fields.integer_or("v_head_dim", 128, 1, kMaxHeadDim)};
  const AttentionHeads sliding = {
      .num_heads = fields.integer_or("swa_num_attention_heads", full.num_heads, 1, kMaxHeads),
      .num_kv_heads =
          fields.integer_or("swa_num_key_value_heads", 2 * full.num_kv_heads, 1, kMaxHeads),
      .qk_head_dim = fields.integer_or("swa_head_dim", full.qk_head_dim, 1, kMaxHeadDim),
      .v_head_dim = fields.integer_or("swa_v_head_dim", full.v_head_dim, 1, kMaxHeadDim)};
  const bool has_sinks = fields.boolean_or("add_swa_attention_sink_bias", true);
  if (!read_layer_types(reading, {.sliding = window})) {
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const bool is_full = pattern ? (*pattern)[i] == 0 : i == 0 || (i + 1) % 6 == 0;
      model.layers[i].attention_window = is_full ? 0 : window;
    }
  }
  for (LayerSpec& layer : model.layers) {
    layer.heads = layer.attention_window > 0 ? sliding : full;
    layer.has_sinks = layer.attention_window > 0 && has_sinks;
  }
}

// Layers with a window may have more heads: num_sliding_attention_heads, or attention_other_setting
// of older files.
void read_step_windows(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::int64_t window = window_or(reading, "sliding_window", 0);
  AttentionHeads sliding = model.heads_of({});
  if (is_given(reading, "attention_other_setting")) {
    ObjectReader other(fields.value("attention_other_setting"), reading.file);
    sliding.num_heads = other.integer_or("num_attention_heads", sliding.num_heads, 1, kMaxHeads);
    sliding.num_kv_heads =
        other.integer_or("num_attention_groups", sliding.num_kv_heads, 1, kMaxHeads);
    sliding.qk_head_dim = other.integer_or("head_dim", sliding.qk_head_dim, 1, kMaxHeadDim);
    sliding.v_head_dim = sliding.qk_head_dim;
  }
  fields.ignore("attention_other_setting");
  sliding.num_heads =
      fields.integer_or("num_sliding_attention_heads", sliding.num_heads, 1, kMaxHeads);
  read_layer_types(reading, {.sliding = window});
  for (LayerSpec& layer : model.layers) {
    if (layer.attention_window > 0 && sliding != model.heads_of({})) {
      layer.heads = sliding;
    }
  }
  read_layer_config(reading);
}

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "gpt_oss",
     .num_kv_heads = 8,
     .head_dim = 64,
     .window = 128,
     .moe = {.num_experts = 128, .topk = 4, .biased_router = true, .biased_experts = true},
     .num_experts_key = "num_local_experts",
     .activation = Activation::kClampedSwiglu,
     .attention_bias = true,
     .bias = AttentionBias::kByKey,
     .read_experts = read_mixtral_experts,
     .read_windows = read_gpt_oss_windows,
     .without_effect = kGptOssKeys},
    {.model_type = "mimo_v2_flash",
     .num_kv_heads = 4,
     .head_dim = 192,
     .rotary_share = 0.334,
     .moe = {.num_experts = 256, .topk = 8, .expert_ffn = 2048, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .bias = AttentionBias::kQkvByAttentionKey,
     .read_experts = read_deepseek_experts,
     .read_windows = read_mimo_v2_windows,
     .without_effect = kMimoV2Keys},
    {.model_type = "minimax_m3",
     .num_kv_heads = 4,
     .head_dim = 128,
     .rotary_share = 0.5,
     .moe = {.num_experts = 128, .topk = 4, .router_bias = true},
     .num_experts_key = "num_local_experts",
     .activation = Activation::kClampedSwiglu,
     .qk_norm = true,
     .read_experts = read_minimax_m3_experts,
     .read_windows = read_minimax_m3_layers,
     .without_effect = kMinimaxM3Keys},
    {.model_type = "minimax_m3_vl_text",
     .vocab = 200064,
     .hidden = 6144,
     .ffn = 3072,
     .num_layers = 60,
     .num_heads = 64,
     .num_kv_heads = 4,
     .head_dim = 128,
     .rotary_share = 0.5,
     .moe = {.num_experts = 128, .topk = 4, .router_bias = true},
     .num_experts_key = "num_local_experts",
     .activation = Activation::kClampedSwiglu,
     .qk_norm = true,
     .read_experts = read_minimax_m3_experts,
     .read_windows = read_minimax_m3_layers,
     .without_effect = kMinimaxM3Keys},
    {.model_type = "step3p5",
     .vocab = 128815,
     .hidden = 4096,
     .ffn = 11264,
     .num_layers = 45,
     .num_heads = 64,
     .own_keys = kStepOwnKeys,
     .reads_layer_config = true,
     .lists_prediction_layers = true,
     .num_kv_heads = 8,
     .head_dim = 128,
     .moe = {.num_experts = 288,
             .topk = 8,
             .expert_ffn = 1280,
             .shared_ffn = 1280,
             .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .qk_norm = true,
     .attention_gate = AttentionGate::kPerHead,
     .bias = AttentionBias::kByKey,
     .read_experts = read_step_experts,
     .read_windows = read_step_windows,
     .without_effect = kStepKeys},
});

}  // namespace

std::span<const ModelFamily> uneven_mixture_families() {
  return kRows;
}

}  // namespace shardplan
