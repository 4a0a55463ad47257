// Defaults: huggingface/transformers 5.17, models/<family>/configuration_<family>.py; shapes:
// modeling_<family>.py beside it. DeepSeek's and Kimi's own older types stand in established.cpp.
#include "data/models/families/latent.h"

#include <array>
#include <string>
#include <vector>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/mixers.h"

namespace shardplan {
namespace {

using Keys = std::string_view;

constexpr std::array kKeys = std::to_array<Keys>(
    {"aux_loss_alpha", "ep_size", "head_dim", "index_share_for_mtp_iteration",
     "indexer_rope_interleave", "moe_router_dtype", "norm_topk_prob", "output_router_logits",
     "qk_head_dim", "rope_interleave", "routed_scaling_factor", "router_aux_loss_coef",
     "scoring_func", "seq_aux", "llama_4_scaling", "embedding_initializer_range"});

constexpr std::array kMiniCpmKeys =
    std::to_array<Keys>({"dim_model_base", "head_dim", "qk_head_dim", "scale_depth", "scale_emb"});

constexpr std::array kKimiLinearKeys =
    std::to_array<Keys>({"head_dim", "mla_use_nope", "model_max_length", "moe_renormalize",
                         "moe_router_activation_func", "num_expert_group", "qk_head_dim",
                         "routed_scaling_factor", "topk_group", "use_grouped_topk"});

constexpr std::array kV4Keys = std::to_array<Keys>(
    {"attention_bias", "compress_rates", "compress_rope_theta", "default_num_hash_layers",
     "expert_dtype", "hc_eps", "hc_sinkhorn_iters", "intermediate_size", "norm_topk_prob",
     "num_nextn_predict_layers", "output_router_logits", "partial_rotary_factor",
     "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "scoring_func",
     "swiglu_limit", "topk_method"});

// Tokens summed up to one in each kind of layer (DeepseekV4Config, default_compress_rates).
constexpr std::int64_t kSparseRate = 4;
constexpr std::int64_t kHeavyRate = 128;

// What compress_ratios says by layer, as layer_types does in words; else two heavily compressed
// layers, then sparse and heavily compressed ones in turn.
std::vector<std::int64_t> compressions(ConfigReading& reading) {
  std::vector<std::int64_t> rates;
  if (const auto listed = numbers_by_layer(reading, "compress_ratios", 0, kMaxWindow)) {
    reading.fields.ignore("layer_types");
    return *listed;
  }
  const auto types = words_by_layer(reading, "layer_types");
  for (std::int64_t i = 0; i < reading.model.num_layers(); ++i) {
    const std::string word = types                 ? (*types)[static_cast<std::size_t>(i)]
                             : i < 2 || i % 2 == 0 ? "heavily_compressed_attention"
                                                   : "compressed_sparse_attention";
    const bool is_sparse = word == "compressed_sparse_attention";
    if (!is_sparse && word != "heavily_compressed_attention" && word != "sliding_attention") {
      throw unknown_word(reading, "layer_types", word,
                         "sliding_attention, compressed_sparse_attention or "
                         "heavily_compressed_attention");
    }
    rates.push_back(is_sparse ? kSparseRate : word == "sliding_attention" ? 0 : kHeavyRate);
  }
  return rates;
}

void read_v4_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.shared_key = {.q_lora_rank = fields.integer_or("q_lora_rank", 1024, 1, kMaxHidden),
                      .output_groups = fields.integer_or("o_groups", 8, 1, kMaxHeads),
                      .output_rank = fields.integer_or("o_lora_rank", 1024, 1, kMaxHidden)};
  model.indexer = {.num_heads = fields.integer_or("index_n_heads", 64, 1, kMaxHeads),
                   .head_dim = fields.integer_or("index_head_dim", 128, 1, kMaxHeadDim),
                   .topk = fields.integer_or("index_topk", 512, 1, kMaxWindow)};
  const std::int64_t rotary = fields.integer_or("qk_rope_head_dim", 64, 0, model.head_dim);
  model.rotary_share = static_cast<double>(rotary) / static_cast<double>(model.head_dim);
  model.residual_streams = {.count = fields.integer_or("hc_mult", 4, 1, 64),
                            .are_hyper_connections = true};
  const std::int64_t window = window_or(reading, "sliding_window", 128);
  const std::vector<std::int64_t> rates = compressions(reading);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    layer.attention_window = window;
    layer.compression = rates[i];
    layer.has_indexer = rates[i] == kSparseRate;
    layer.has_sinks = true;
  }
}

void read_v4_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::int64_t num_layers = model.num_layers();
  read_routed(reading);
  model.moe.shared_ffn =
      fields.integer_or("n_shared_experts", 1, 0, kMaxExperts) * model.moe.expert_ffn;
  const auto types = words_by_layer(reading, "mlp_layer_types");
  const std::int64_t hashed = fields.integer_or("num_hash_layers", 3, 0, num_layers);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    LayerSpec& layer = model.layers[static_cast<std::size_t>(i)];
    layer.is_moe = true;
    layer.routes_by_hash = types ? (*types)[static_cast<std::size_t>(i)] == "hash_moe" : i < hashed;
  }
}

// Experts as DeepSeek-V3's; the class of GLM-4.7-Flash takes no first_k_dense_replace.
void read_glm_lite_experts(ConfigReading& reading) {
  reading.fields.ignore("first_k_dense_replace");
  read_deepseek_experts(reading);
}

constexpr MlaSpec kGlmWidths = {.q_lora_rank = 2048,
                                .kv_lora_rank = 512,
                                .qk_nope_head_dim = 192,
                                .qk_rope_head_dim = 64,
                                .v_head_dim = 256};

constexpr ModelFamily kDeepseekV4 = {
    .model_type = "deepseek_v4",
    .needs_no_ffn = true,
    .lists_prediction_layers = true,
    .num_kv_heads = 1,
    .head_dim = 512,
    .moe = {.num_experts = 256, .topk = 6, .expert_ffn = 2048, .router_bias = true},
    .num_experts_key = "n_routed_experts",
    .activation = Activation::kClampedSwiglu,
    .attention = AttentionKind::kSharedKey,
    .read_experts = read_v4_experts,
    .read_windows = read_v4_layers,
    .without_effect = kV4Keys};

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "deepseek_v32",
     .attention_word = "deepseek_sparse_attention",
     .indexer = {.num_heads = 64},
     .num_shared_experts = 1,
     .num_first_dense = 3,
     .moe = {.num_experts = 256,
             .topk = 8,
             .num_groups = 8,
             .topk_groups = 4,
             .expert_ffn = 2048,
             .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_indexer_layers,
     .without_effect = kKeys},
    // DeepSeek-V4 under the name that its inference code gives it.
    also_named("deepseek_ref", kDeepseekV4),
    kDeepseekV4,
    {.model_type = "glm4_moe_lite",
     .mla = {.q_lora_rank = 768,
             .kv_lora_rank = 512,
             .qk_nope_head_dim = 192,
             .qk_rope_head_dim = 64,
             .v_head_dim = 256},
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 64, .topk = 4, .expert_ffn = 1536, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_glm_lite_experts,
     .without_effect = kKeys},
    {.model_type = "glm_moe_dsa",
     .mla = kGlmWidths,
     .attention_word = "deepseek_sparse_attention",
     .indexer = {.num_heads = 32},
     .num_shared_experts = 1,
     .num_first_dense = 3,
     .moe = {.num_experts = 256, .topk = 8, .expert_ffn = 2048, .router_bias = true},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_indexer_layers,
     .without_effect = kKeys},
    // Attention without rotary positions beside Kimi delta attention.
    {.model_type = "kimi_linear",
     .mla = {.q_lora_rank = 0,
             .kv_lora_rank = 512,
             .qk_nope_head_dim = 128,
             .qk_rope_head_dim = 64,
             .v_head_dim = 128},
     .mixer = MixerKind::kKimiDelta,
     .num_shared_experts = 1,
     .num_first_dense = 1,
     .moe = {.num_experts = 256, .topk = 8, .expert_ffn = 1024, .router_bias = true},
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .read_windows = read_kimi_delta_layers,
     .without_effect = kKimiLinearKeys},
    {.model_type = "minicpm3",
     .mla = {.q_lora_rank = 768,
             .kv_lora_rank = 256,
             .qk_nope_head_dim = 64,
             .qk_rope_head_dim = 32,
             .v_head_dim = 64},
     .tied_embeddings = true,
     .attention = AttentionKind::kMla,
     .without_effect = kMiniCpmKeys},
    {.model_type = "mistral4",
     .mla = {.q_lora_rank = 1024,
             .kv_lora_rank = 256,
             .qk_nope_head_dim = 64,
             .qk_rope_head_dim = 64,
             .v_head_dim = 128},
     .num_shared_experts = 1,
     .moe = {.num_experts = 128, .topk = 4, .expert_ffn = 2048},
     .num_experts_key = "n_routed_experts",
     .attention = AttentionKind::kMla,
     .read_experts = read_deepseek_experts,
     .without_effect = kKeys},
    {.model_type = "youtu",
     .tied_embeddings = true,
     .attention = AttentionKind::kMla,
     .without_effect = kKeys},
});

}  // namespace

std::span<const ModelFamily> latent_families() {
  return kRows;
}

}  // namespace shardplan
