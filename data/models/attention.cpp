#include "data/models/attention.h"

#include <algorithm>

#include "data/models/config_keys.h"

namespace shardplan {
namespace {

// Absent: the default of the family. Null: as many as heads, in every family.
void read_kv_heads(ConfigReading& reading) {
  const std::string_view key = reading.named("num_key_value_heads");
  ModelSpec& model = reading.model;
  const bool by_class = !reading.fields.has(key) && reading.family.num_kv_heads > 0;
  model.num_kv_heads = reading.fields.integer_or(
      key, by_class ? reading.family.num_kv_heads : model.num_heads, 1, kMaxHeads);
  if (model.num_heads % model.num_kv_heads != 0) {
    throw reading.fields.error(
        key,
        "found " + std::to_string(model.num_kv_heads) +
            (by_class ? " (the default of " + std::string(reading.family.model_type) + ")" : "") +
            ", expected a divisor of num_attention_heads = " + std::to_string(model.num_heads));
  }
}

void read_head_dim(ConfigReading& reading) {
  const std::string_view key = reading.named("head_dim");
  ModelSpec& model = reading.model;
  const bool is_given = reading.fields.has(key) && !reading.fields.is_null(key);
  const bool by_class = !reading.fields.has(key) && reading.family.head_dim > 0;
  if (!is_given && !by_class && model.hidden % model.num_heads != 0) {
    throw reading.fields.error("hidden_size",
                               "found " + std::to_string(model.hidden) +
                                   ", expected a multiple of num_attention_heads = " +
                                   std::to_string(model.num_heads) + ", or head_dim given");
  }
  model.head_dim = reading.fields.integer_or(
      key,
      by_class ? reading.family.head_dim
               : std::max<std::int64_t>(1, model.hidden / model.num_heads),
      1, kMaxHeadDim);
}

void read_attention_biases(ConfigReading& reading) {
  ModelSpec& model = reading.model;
  const auto by_attention_key = [&reading] {
    return reading.fields.boolean_or("attention_bias", reading.family.attention_bias);
  };
  switch (reading.family.bias) {
    case AttentionBias::kNone: return;
    case AttentionBias::kQkvAlways: model.qkv_bias = true; return;
    case AttentionBias::kAlways:
      model.qkv_bias = true;
      model.attention_output_bias = true;
      return;
    case AttentionBias::kQkvByUseKey:
      model.qkv_bias = reading.fields.boolean_or("use_qkv_bias", false);
      return;
    case AttentionBias::kByUseQkvAndUse:
      model.qkv_bias = reading.fields.boolean_or("use_qkv_bias", false);
      model.attention_output_bias = reading.fields.boolean_or("use_bias", false);
      return;
    case AttentionBias::kQkvByAddKey:
      model.qkv_bias = reading.fields.boolean_or("add_qkv_bias", false);
      return;
    case AttentionBias::kByUseBias:
      model.qkv_bias = reading.fields.boolean_or("use_bias", reading.family.attention_bias);
      model.attention_output_bias = model.qkv_bias;
      return;
    case AttentionBias::kQkvByKey:
      model.qkv_bias = reading.fields.boolean_or("qkv_bias", true);
      return;
    case AttentionBias::kQkvByAttentionKey: model.qkv_bias = by_attention_key(); return;
    case AttentionBias::kByTwoKeys:
      model.qkv_bias = by_attention_key();
      model.attention_output_bias = reading.fields.boolean_or("attention_out_bias", false);
      return;
    case AttentionBias::kByKey:
      model.qkv_bias = by_attention_key();
      model.attention_output_bias = model.qkv_bias;
      return;
  }
}

// Multi-head latent attention has its own five widths; head_dim in these files is the rotary part
// only and is never used. Biases are in no published model and not counted: refused.
void read_latent_attention(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const MlaSpec& of_class = reading.family.mla;
  const std::int64_t query_rank =
      fields.is_null("q_lora_rank")
          ? 0
          : fields.integer_or("q_lora_rank", of_class.q_lora_rank, 0, kMaxHidden);
  fields.ignore("q_lora_rank");
  const auto head_width = [&fields](std::string_view key, std::int64_t fallback) {
    return fields.integer_or(key, fallback, 1, kMaxHeadDim);
  };
  model.mla = {
      .q_lora_rank = query_rank,
      .kv_lora_rank = fields.integer_or("kv_lora_rank", of_class.kv_lora_rank, 1, kMaxHidden),
      .qk_nope_head_dim = head_width("qk_nope_head_dim", of_class.qk_nope_head_dim),
      .qk_rope_head_dim = head_width("qk_rope_head_dim", of_class.qk_rope_head_dim),
      .v_head_dim = head_width("v_head_dim", of_class.v_head_dim),
  };
  model.head_dim = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim;
  model.num_kv_heads = fields.integer_or("num_key_value_heads", model.num_heads, 1, kMaxHeads);
  if (model.num_kv_heads != model.num_heads) {
    reading.warn("num_key_value_heads",
                 "found " + std::to_string(model.num_kv_heads) +
                     ", took num_attention_heads = " + std::to_string(model.num_heads) +
                     ": latent attention has no key/value groups");
    model.num_kv_heads = model.num_heads;
  }
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean_or(key, false)) {
      throw fields.error(
          key, "found true, expected false for " + std::string(reading.family.model_type));
    }
  }
}

}  // namespace

void read_attention(ConfigReading& reading) {
  reading.model.attention = reading.family.attention;
  switch (reading.family.attention) {
    case AttentionKind::kMla: read_latent_attention(reading); return;
    case AttentionKind::kSharedKey:
    case AttentionKind::kGqa:
      read_kv_heads(reading);
      read_head_dim(reading);
      read_attention_biases(reading);
      return;
  }
}

}  // namespace shardplan
