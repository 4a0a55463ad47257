// One row per Hugging Face model_type: what its configuration class assumes where a config.json is
// silent, and how experts and attention windows are laid out over the layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_reader.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

struct ModelFamily;

// One config.json (or text_config) on its way into a ModelSpec.
struct ConfigReading {
  ObjectReader fields;
  const ModelFamily& family;
  ModelSpec model;
  std::vector<std::string> warnings;
  std::string file;

  // "file:line: /key: text" as a warning.
  void warn(std::string_view key, const std::string& text);
  // The key under which the file has what files usually have under that one.
  std::string_view named(std::string_view usual) const;
};

// Which projections of the attention have biases.
enum class AttentionBias {
  kNone,
  kByKey,              // attention_bias: q, k, v and output
  kQkvByKey,           // qkv_bias: q, k, v
  kQkvByAttentionKey,  // attention_bias: q, k, v
  kQkvByUseKey,        // use_qkv_bias: q, k, v
  kQkvByAddKey,        // add_qkv_bias: q, k, v
  kByTwoKeys,          // attention_bias: q, k, v; attention_out_bias: output
  kByUseBias,          // use_bias: q, k, v and output
  kByUseQkvAndUse,     // use_qkv_bias: q, k, v; use_bias: output
  kQkvAlways,          // q, k, v, without a key
  kAlways,             // q, k, v and output, without a key
};

// A key that a family's files have in place of another's.
struct OwnKey {
  std::string_view usual;
  std::string_view own;
};

struct ModelFamily {
  std::string_view model_type;
  // Of a text_config only: a whole config.json must give its five sizes.
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;

  std::span<const OwnKey> own_keys = {};
  // Files need not state a width of dense FFNs, or state it in a way of the family's own.
  bool needs_no_ffn = false;
  // Layers of a file that does not count them; none: it must.
  std::int64_t (*count_layers)(ConfigReading&) = nullptr;
  // The family reads per_layer_config; others are refused with it.
  bool reads_layer_config = false;
  // Lists by layer have entries of prediction modules behind those of the layers.
  bool lists_prediction_layers = false;

  std::int64_t num_kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;      // 0: hidden / heads
  MlaSpec mla = {.q_lora_rank = 1536,
                 .kv_lora_rank = 512,
                 .qk_nope_head_dim = 128,
                 .qk_rope_head_dim = 64,
                 .v_head_dim = 128};
  double rotary_share = 1;  // partial_rotary_factor
  std::int64_t window = 0;  // sliding_window; 0: none
  std::int64_t window_pattern = 0;
  // What mixes tokens where attention does not, and its word in layer_types; and that of attention,
  // beside full_attention.
  MixerKind mixer = MixerKind::kAttention;
  std::string_view mixer_word = "linear_attention";
  std::string_view attention_word = "full_attention";
  IndexerSpec indexer = {};
  std::int64_t num_shared_experts = 0;
  std::int64_t num_first_dense = 0;
  MoeSpec moe = {};
  std::string_view num_experts_key = "num_experts";
  bool tied_embeddings = false;
  bool gated_ffn = true;
  Activation activation = Activation::kSilu;
  std::string_view activation_key = "";  // whose word says it; none: all models have that one
  std::string_view ffn_bias_key = "";    // none: FFNs have the bias that follows
  bool ffn_bias = false;                 // where that key is absent
  bool attention_bias = false;           // likewise
  bool has_head_bias = false;
  bool qk_norm = false;
  bool qk_norm_key = false;  // use_qk_norm
  bool norms_all_heads = false;
  AttentionGate attention_gate = AttentionGate::kNone;
  std::int64_t norms_per_layer = 2;
  bool norms_after = false;
  bool parallel_ffn = false;
  bool layer_norm = false;
  bool norm_bias = true;
  bool soft_caps = false;  // of logits and scores, where their keys are absent
  AttentionKind attention = AttentionKind::kGqa;
  AttentionBias bias = AttentionBias::kNone;
  // Widths, and which layers have experts; none: no layer has.
  void (*read_experts)(ConfigReading&) = nullptr;
  // How many keys a query sees in each layer, and what mixes tokens there; none: all, attention.
  void (*read_windows)(ConfigReading&) = nullptr;
  // What else the family has; none: nothing.
  void (*read_own_parts)(ConfigReading&) = nullptr;
  std::span<const std::string_view> without_effect = {};  // beside keys_without_effect()
  std::span<const std::string_view> not_counted = {};     // operations that no row describes
};

// A family under another model_type.
constexpr ModelFamily also_named(std::string_view model_type, ModelFamily family) {
  family.model_type = model_type;
  return family;
}

std::span<const ModelFamily> model_families();
// Keys of every family that change neither memory nor time.
std::span<const std::string_view> keys_without_effect();

inline bool is_mamba(MixerKind mixer) {
  return mixer == MixerKind::kMamba1 || mixer == MixerKind::kMamba2;
}

}  // namespace shardplan
