// Defaults and shapes: huggingface/transformers 5.17, models/gemma3n, gemma4 and gemma4_unified,
// configuration_*.py and modeling_*.py.
#include "data/models/families/gemmas.h"

#include <array>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/models/experts.h"
#include "data/models/layers.h"

namespace shardplan {
namespace {

constexpr std::array kKeys = std::to_array<std::string_view>(
    {"activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale",
     "altup_lr_multiplier", "moe_mlp_layer_types", "query_pre_attn_scalar", "rope_local_base_freq",
     "sliding_window_size", "use_layer_scalar"});

// The cap of logits is counted by all frameworks that train Gemma 4.
constexpr std::array kGemma4Keys = std::to_array<std::string_view>(
    {"activation_sparsity_pattern", "final_logit_softcapping", "moe_mlp_layer_types",
     "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_size", "use_layer_scalar"});

constexpr std::string_view kUnified = "gemma4_unified_text";

constexpr std::array kSoftCap = std::to_array<std::string_view>({"final_logit_softcapping"});

// The classes of Gemma 4 without encoders have none.
void read_per_layer_embedding(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  if (reading.family.model_type == kUnified) {
    return;
  }
  reading.model.per_layer_embedding = {
      .vocab = fields.integer_or("vocab_size_per_layer_input", 262144, 1, std::int64_t{1} << 24),
      .width = integer_or_null(reading, "hidden_size_per_layer_input", 0, 256, kMaxHidden)};
}

// The last num_kv_shared_layers layers read keys and values of the last of their kind before them.
std::int64_t share_keys(ConfigReading& reading, std::int64_t of_class) {
  ModelSpec& model = reading.model;
  const std::int64_t shared =
      reading.fields.integer_or("num_kv_shared_layers", of_class, 0, model.num_layers() - 1);
  for (auto layer = model.layers.end() - shared; layer != model.layers.end(); ++layer) {
    layer->key_values = KeyValueSource::kEarlierLayer;
  }
  return shared;
}

// intermediate_size may be a list, a width a layer.
std::int64_t first_width(ConfigReading& reading) {
  const std::string_view key = "intermediate_size";
  ObjectReader& fields = reading.fields;
  if (!fields.has(key) || fields.value(key).kind != JsonKind::kArray) {
    return fields.integer_or(key, 16384, 1, kMaxFfn);
  }
  const auto widths = numbers_by_layer(reading, key, 1, kMaxFfn);
  for (std::size_t i = 0; i < widths->size(); ++i) {
    const std::int64_t width = (*widths)[i];
    reading.model.layers[i].ffn = width == widths->front() ? 0 : width;
  }
  return widths->front();
}

void read_gemma3n_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.ffn = first_width(reading);
  read_per_layer_embedding(reading);
  share_keys(reading, 15);
  model.residual_streams = {.count = fields.integer_or("altup_num_inputs", 4, 1, 64),
                            .laurel_rank = fields.integer_or("laurel_rank", 64, 1, kMaxHidden)};
}

void read_gemma4_windows(ConfigReading& reading) {
  const std::string_view both_ways = "use_bidirectional_attention";
  ObjectReader& fields = reading.fields;
  const std::string reach =
      fields.has(both_ways) && fields.value(both_ways).kind == JsonKind::kString
          ? fields.string(both_ways)
          : "";
  if (reach == "all" || (reach.empty() && fields.boolean_or(both_ways, false))) {
    throw fields.error(both_ways, "found " + describe(fields.value(both_ways)) +
                                      ", expected none or \"vision\": only causal models");
  }
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  fields.ignore("_sliding_window_pattern");
  if (!read_layer_types(reading, {.sliding = window})) {
    put_windows(reading, window, 6);
  }
  reading.model.layers.back().attention_window = 0;  // the class forces it
}

// Full layers have wider heads, with attention_k_eq_v of another number and without values of
// their own.
void read_gemma4_heads(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const bool keys_are_values = fields.boolean_or("attention_k_eq_v", false);
  const std::int64_t width = integer_or_null(reading, "global_head_dim", 1, 512, kMaxHeadDim);
  const std::int64_t kv_heads =
      integer_or_null(reading, "num_global_key_value_heads", 0, 0, kMaxHeads);
  const AttentionHeads full = {
      .num_heads = model.num_heads,
      .num_kv_heads = keys_are_values && kv_heads > 0 ? kv_heads : model.num_kv_heads,
      .qk_head_dim = width,
      .v_head_dim = width};
  for (LayerSpec& layer : model.layers) {
    if (layer.attention_window > 0) {
      continue;
    }
    if (full != model.heads_of({})) {
      layer.heads = full;
    }
    if (keys_are_values && layer.key_values == KeyValueSource::kOwn) {
      layer.key_values = KeyValueSource::kKeysAreValues;
    }
  }
}

void read_gemma4_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  read_per_layer_embedding(reading);
  const std::int64_t shared = share_keys(reading, 0);
  read_gemma4_heads(reading);
  read_layer_config(reading);
  if (fields.boolean_or("use_double_wide_mlp", false)) {
    for (auto layer = model.layers.end() - shared; layer != model.layers.end(); ++layer) {
      layer->ffn = 2 * model.ffn;
    }
  }
  if (!fields.boolean_or("enable_moe_block", false)) {
    for (const std::string_view key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
      fields.ignore(key);
    }
    return;
  }
  model.moe = {.num_experts = fields.integer("num_experts", 1, kMaxExperts),
               .topk = fields.integer("top_k_experts", 1, kMaxExperts),
               .expert_ffn = fields.integer("moe_intermediate_size", 1, kMaxFfn),
               .beside_dense = true};
  for (LayerSpec& layer : model.layers) { layer.is_moe = true; }
}

constexpr ModelFamily kGemma4 = {.model_type = "gemma4_text",
                                 .vocab = 262144,
                                 .hidden = 2304,
                                 .ffn = 9216,
                                 .num_layers = 30,
                                 .num_heads = 8,
                                 .reads_layer_config = true,
                                 .num_kv_heads = 4,
                                 .head_dim = 256,
                                 .window = 512,
                                 .tied_embeddings = true,
                                 .activation = Activation::kGelu,
                                 .qk_norm = true,
                                 .norms_per_layer = 4,
                                 .bias = AttentionBias::kByKey,
                                 .read_windows = read_gemma4_windows,
                                 .read_own_parts = read_gemma4_parts,
                                 .without_effect = kGemma4Keys};

constexpr ModelFamily unified(ModelFamily family) {
  family.model_type = kUnified;
  family.window = 1024;
  return family;
}

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "gemma3n_text",
     .vocab = 262400,
     .hidden = 2048,
     .num_layers = 35,
     .num_heads = 8,
     .needs_no_ffn = true,
     .num_kv_heads = 2,
     .head_dim = 256,
     .window = 512,
     .window_pattern = 5,
     .tied_embeddings = true,
     .activation = Activation::kGelu,
     .qk_norm = true,
     .norms_per_layer = 4,
     .soft_caps = true,
     .bias = AttentionBias::kByKey,
     .read_windows = read_windows_by_pattern,
     .read_own_parts = read_gemma3n_parts,
     .without_effect = kKeys,
     .not_counted = kSoftCap},
    kGemma4,
    unified(kGemma4),
});

}  // namespace

std::span<const ModelFamily> later_gemma_families() {
  return kRows;
}

}  // namespace shardplan
