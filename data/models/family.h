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

  // "file:line: /key: text" as a warning.
  void warn(std::string_view key, const std::string& text);
};

// Which projections of the attention have biases.
enum class AttentionBias {
  kNone,
  kByKey,              // attention_bias: q, k, v and output
  kQkvByKey,           // qkv_bias: q, k, v
  kQkvByAttentionKey,  // attention_bias: q, k, v
  kByTwoKeys,          // attention_bias: q, k, v; attention_out_bias: output
  kQkvAlways,          // q, k, v, without a key
};

struct ModelFamily {
  std::string_view model_type;
  // Of a text_config only: a whole config.json must give its five sizes.
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;

  std::int64_t num_kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;      // 0: hidden / heads
  std::int64_t window = 0;        // sliding_window; 0: none
  std::int64_t window_pattern = 0;
  std::int64_t num_shared_experts = 0;
  std::int64_t num_first_dense = 0;
  MoeSpec moe = {};
  std::string_view num_experts_key = "num_experts";
  bool tied_embeddings = false;
  bool ffn_bias_key = false;
  bool attention_bias = false;  // where that key is absent
  bool qk_norm = false;
  bool qk_norm_key = false;  // use_qk_norm
  std::int64_t norms_per_layer = 2;
  bool soft_caps = false;  // of logits and scores, where their keys are absent
  AttentionKind attention = AttentionKind::kGqa;
  AttentionBias bias = AttentionBias::kNone;
  void (*read_experts)(ConfigReading&) = nullptr;         // widths, and which layers have experts
  void (*read_windows)(ConfigReading&) = nullptr;         // of every LayerSpec
  std::span<const std::string_view> without_effect = {};  // beside keys_without_effect()
  std::span<const std::string_view> not_counted = {};     // operations that no row describes
};

std::span<const ModelFamily> model_families();
// Keys of every family that change neither memory nor time.
std::span<const std::string_view> keys_without_effect();

}  // namespace shardplan
