// The layer rules of every family: which layers have experts, and how many keys a query sees.
// Sources: huggingface/transformers 4.57.1, models/<family>/configuration_<family>.py and
// modeling_<family>.py.
#include "data/models/layers.h"

#include <array>
#include <optional>

#include "data/models/config.h"
#include "data/models/family.h"

namespace shardplan {

namespace {

constexpr std::int64_t kMaxFfn = std::int64_t{1} << 24;
constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 27;

// `null` for null, which is the least value, too; `absent` without the key.
std::int64_t integer_or_null(ConfigReading& reading, std::string_view key, std::int64_t null,
                             std::int64_t absent, std::int64_t high) {
  return reading.fields.integer_or(key, reading.fields.is_null(key) ? null : absent, null, high);
}

// A size that decides the shape: the default of the class is taken, but not silently.
std::int64_t class_default(ConfigReading& reading, std::string_view key, std::int64_t value,
                           std::int64_t high) {
  if (!reading.fields.has(key)) {
    reading.warn(key, "found nothing, took " + std::to_string(value) + ", the default of " +
                          std::string(reading.family.model_type));
  }
  return reading.fields.integer_or(key, value, 1, high);
}

// One number under several names; those that are there must agree.
std::optional<std::int64_t> aliased(ConfigReading& reading, std::span<const std::string_view> keys,
                                    std::int64_t high) {
  std::optional<std::int64_t> found;
  for (const std::string_view key : keys) {
    if (!reading.fields.has(key) || reading.fields.is_null(key)) {
      reading.fields.ignore(key);
      continue;
    }
    const std::int64_t value = reading.fields.integer(key, 0, high);
    if (found && *found != value) {
      throw reading.fields.error(key, "found " + std::to_string(value) + " but " +
                                          std::to_string(*found) +
                                          " under another name, expected one number");
    }
    found = value;
  }
  return found;
}

std::int64_t num_experts(ConfigReading& reading) {
  constexpr std::array kNames =
      std::to_array<std::string_view>({"num_experts", "num_local_experts", "n_routed_experts"});
  const std::optional<std::int64_t> found = aliased(reading, kNames, kMaxExperts);
  return found ? *found
               : class_default(reading, reading.family.num_experts_key,
                               reading.family.moe.num_experts, kMaxExperts);
}

std::int64_t topk(ConfigReading& reading) {
  const std::string_view key = "num_experts_per_tok";
  const std::int64_t num_experts = reading.model.moe.num_experts;
  const std::int64_t value =
      reading.family.moe.topk == 0
          ? reading.fields.integer(key, 1, kMaxExperts)
          : class_default(reading, key, reading.family.moe.topk, kMaxExperts);
  if (value > num_experts) {
    throw reading.fields.error(key, "found " + std::to_string(value) + ", expected at most the " +
                                        std::to_string(num_experts) + " experts");
  }
  return value;
}

// Groups of experts, of which a token's experts are of some.
void read_groups(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const MoeSpec& absent = reading.family.moe;
  moe.num_groups = integer_or_null(reading, "n_group", 1, absent.num_groups, kMaxExperts);
  moe.topk_groups = integer_or_null(reading, "topk_group", 1, absent.topk_groups, kMaxExperts);
  if (moe.num_experts % moe.num_groups != 0) {
    throw reading.fields.error("n_group", "found " + std::to_string(moe.num_groups) +
                                              ", expected a divisor of the " +
                                              std::to_string(moe.num_experts) + " experts");
  }
  const std::int64_t eligible = moe.num_experts / moe.num_groups * moe.topk_groups;
  if (moe.topk_groups > moe.num_groups || moe.topk > eligible) {
    throw reading.fields.error(
        "topk_group", "found " + std::to_string(moe.topk_groups) + " of " +
                          std::to_string(moe.num_groups) + " groups of experts, expected at most " +
                          "all of them, with the " + std::to_string(moe.topk) + " of a token");
  }
}

std::int64_t expert_ffn(ConfigReading& reading) {
  return class_default(reading, "moe_intermediate_size", reading.family.moe.expert_ffn, kMaxFfn);
}

// A list of integers; nullopt when absent or null.
std::optional<std::vector<std::int64_t>> integers(ConfigReading& reading, std::string_view key,
                                                  std::int64_t low, std::int64_t high) {
  if (!reading.fields.has(key) || reading.fields.is_null(key)) {
    reading.fields.ignore(key);
    return std::nullopt;
  }
  const JsonValue& list = reading.fields.value(key);
  const std::string expected =
      ", expected a list of integers from " + std::to_string(low) + " to " + std::to_string(high);
  if (list.kind != JsonKind::kArray) {
    throw reading.fields.error(key, "found " + describe(list) + expected);
  }
  std::vector<std::int64_t> numbers;
  for (const JsonValue& item : list.items) {
    if (item.kind != JsonKind::kInteger || item.integer < low || item.integer > high) {
      throw reading.fields.error(key, "found " + describe(item) + expected);
    }
    numbers.push_back(item.integer);
  }
  return numbers;
}

std::optional<std::vector<std::int64_t>> layer_indices(ConfigReading& reading,
                                                       std::string_view key) {
  return integers(reading, key, 0, reading.model.num_layers() - 1);
}

void mark_moe(ModelSpec& model, std::int64_t layer) {
  model.layers[static_cast<std::size_t>(layer)].is_moe = true;
}

// What each word of layer_types means here; 0: this model states no such width.
struct Widths {
  std::int64_t sliding = 0;
  std::int64_t chunked = 0;
};

void read_layer_type(ConfigReading& reading, const JsonValue& type, Widths widths,
                     LayerSpec& layer) {
  const std::string_view key = "layer_types";
  if (type.kind != JsonKind::kString) {
    throw reading.fields.error(key, "found " + describe(type) + ", expected a list of strings");
  }
  if (type.string == "full_attention") {
    layer.attention_window = 0;
    return;
  }
  const bool is_sliding = type.string == "sliding_attention";
  if (!is_sliding && type.string != "chunked_attention") {
    throw reading.fields.error(
        key, "found " + describe(type) +
                 ", expected full_attention, sliding_attention or chunked_attention");
  }
  layer.attention_window = is_sliding ? widths.sliding : widths.chunked;
  layer.attends_in_chunks = !is_sliding;
  if (layer.attention_window == 0) {
    throw reading.fields.error(
        key, "found " + describe(type) + ", expected " +
                 (is_sliding ? "a sliding_window" : "an attention_chunk_size") + " with it");
  }
}

// True if layer_types is there; it then decides alone.
bool read_layer_types(ConfigReading& reading, Widths widths) {
  const std::string_view key = "layer_types";
  if (!reading.fields.has(key) || reading.fields.is_null(key)) {
    reading.fields.ignore(key);
    return false;
  }
  const JsonValue& types = reading.fields.value(key);
  std::vector<LayerSpec>& layers = reading.model.layers;
  if (types.kind != JsonKind::kArray || types.items.size() != layers.size()) {
    throw reading.fields.error(key, "found " + describe(types) + ", expected a list of " +
                                        std::to_string(layers.size()) + " strings");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    read_layer_type(reading, types.items[i], widths, layers[i]);
  }
  return true;
}

// 0 for null; the default of the class when absent.
std::int64_t window_or(ConfigReading& reading, std::string_view key, std::int64_t fallback) {
  return integer_or_null(reading, key, 0, fallback, kMaxWindow);
}

// use_sliding_window switches the whole key off (Qwen).
std::int64_t window_if_used(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  return reading.fields.boolean_or("use_sliding_window", false) ? window : 0;
}

}  // namespace

void read_no_experts(ConfigReading&) {}

// intermediate_size is the width of an expert; every layer has experts.
void read_mixtral_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = reading.model.ffn;
  for (LayerSpec& layer : reading.model.layers) { layer.is_moe = true; }
}

// Experts in every decoder_sparse_step-th layer, except those of mlp_only_layers.
void read_qwen_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const std::int64_t step = reading.fields.integer_or("decoder_sparse_step", 1, 1, kMaxExperts);
  const auto dense =
      layer_indices(reading, "mlp_only_layers").value_or(std::vector<std::int64_t>());
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = expert_ffn(reading);
  if (reading.family.moe.shared_ffn > 0) {
    moe.shared_ffn = class_default(reading, "shared_expert_intermediate_size",
                                   reading.family.moe.shared_ffn, kMaxFfn);
    moe.shared_gate = reading.family.moe.shared_gate;
  }
  for (std::int64_t i = step - 1; i < reading.model.num_layers(); i += step) {
    mark_moe(reading.model, i);
  }
  for (const std::int64_t i : dense) {
    reading.model.layers[static_cast<std::size_t>(i)].is_moe = false;
  }
}

// Experts after the first first_k_dense_replace layers, in every moe_layer_freq-th layer
// (modeling_deepseek.py of deepseek-ai/DeepSeek-V2; the classes in transformers know only 1).
void read_deepseek_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const ModelFamily& family = reading.family;
  const std::int64_t num_layers = reading.model.num_layers();
  const std::int64_t first =
      reading.fields.integer_or("first_k_dense_replace", family.num_first_dense, 0, num_layers);
  const std::int64_t step = reading.fields.integer_or("moe_layer_freq", 1, 1, num_layers);
  const std::int64_t num_shared =
      integer_or_null(reading, "n_shared_experts", 0, family.num_shared_experts, kMaxExperts);
  const std::string method = reading.fields.string_or("topk_method", "noaux_tc");
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  read_groups(reading);
  moe.expert_ffn = expert_ffn(reading);
  moe.shared_ffn = num_shared * moe.expert_ffn;
  moe.router_bias = family.moe.router_bias && method == "noaux_tc";
  for (std::int64_t i = 0; i < num_layers; ++i) {
    if (i >= first && i % step == 0) {
      mark_moe(reading.model, i);
    }
  }
  constexpr std::array kMtpNames =
      std::to_array<std::string_view>({"num_nextn_predict_layers", "num_mtp_layers"});
  reading.model.num_mtp_layers = aliased(reading, kMtpNames, kMaxMtpLayers).value_or(0);
}

// intermediate_size is the width of an expert and of the one shared expert; dense layers have
// intermediate_size_mlp.
void read_llama4_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const std::int64_t num_layers = reading.model.num_layers();
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = reading.model.ffn;
  moe.shared_ffn = reading.model.ffn;
  reading.model.ffn = class_default(reading, "intermediate_size_mlp", 16384, kMaxFfn);
  const std::int64_t step =
      reading.fields.integer_or("interleave_moe_layer_step", 1, 1, num_layers);
  if (const auto listed = layer_indices(reading, "moe_layers")) {
    for (const std::int64_t i : *listed) { mark_moe(reading.model, i); }
    return;
  }
  for (std::int64_t i = step - 1; i < num_layers; i += step) { mark_moe(reading.model, i); }
}

void read_no_windows(ConfigReading&) {}

void read_windows_of_all_layers(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  for (LayerSpec& layer : reading.model.layers) { layer.attention_window = window; }
}

// Layers from max_window_layers on.
void read_windows_of_upper_layers(ConfigReading& reading) {
  const std::int64_t window = window_if_used(reading);
  const std::int64_t num_full = reading.fields.integer_or("max_window_layers", 28, 0, kMaxWindow);
  if (read_layer_types(reading, {.sliding = window})) {
    return;
  }
  for (std::int64_t i = num_full; i < reading.model.num_layers(); ++i) {
    reading.model.layers[static_cast<std::size_t>(i)].attention_window = window;
  }
}

// All layers; the class does not read max_window_layers, though files carry it.
void read_windows_if_used(ConfigReading& reading) {
  const std::int64_t window = window_if_used(reading);
  reading.fields.ignore("max_window_layers");
  for (LayerSpec& layer : reading.model.layers) { layer.attention_window = window; }
}

// As layer_types says; a window of other layers than those is refused.
void read_windows_of_layer_types(ConfigReading& reading) {
  const std::int64_t window = window_if_used(reading);
  if (!read_layer_types(reading, {.sliding = window}) && window > 0) {
    throw reading.fields.error("use_sliding_window", "found true, expected layer_types with it");
  }
}

// Every n-th layer sees everything, the others a window: n is 2 in Gemma 2, 6 in Gemma 3.
void read_windows_by_pattern(ConfigReading& reading) {
  const std::string_view both_ways = "use_bidirectional_attention";
  if (reading.fields.boolean_or(both_ways, false)) {
    throw reading.fields.error(both_ways, "found true, expected false: only causal models");
  }
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  reading.fields.ignore("_sliding_window_pattern");
  const std::int64_t pattern = reading.fields.integer_or(
      "sliding_window_pattern", reading.family.window_pattern, 1, reading.model.num_layers() + 1);
  if (read_layer_types(reading, {.sliding = window})) {
    return;
  }
  for (std::int64_t i = 0; i < reading.model.num_layers(); ++i) {
    if ((i + 1) % pattern != 0) {
      reading.model.layers[static_cast<std::size_t>(i)].attention_window = window;
    }
  }
}

// Layers with rotary embeddings attend within chunks; despite its name, no_rope_layers holds a 1
// for those, and without it every no_rope_layer_interval-th layer has none.
void read_chunks(ConfigReading& reading) {
  std::vector<LayerSpec>& layers = reading.model.layers;
  const std::int64_t chunk = window_or(reading, "attention_chunk_size", 8192);
  const std::int64_t interval =
      reading.fields.integer_or("no_rope_layer_interval", 4, 1, kMaxWindow);
  std::vector<std::int64_t> has_rope =
      integers(reading, "no_rope_layers", 0, 1).value_or(std::vector<std::int64_t>());
  if (has_rope.empty()) {
    for (std::int64_t i = 0; i < reading.model.num_layers(); ++i) {
      has_rope.push_back((i + 1) % interval == 0 ? 0 : 1);
    }
  }
  if (has_rope.size() != layers.size()) {
    throw reading.fields.error("no_rope_layers", "found " + std::to_string(has_rope.size()) +
                                                     " numbers, expected one per layer, " +
                                                     std::to_string(layers.size()));
  }
  if (read_layer_types(reading, {.chunked = chunk})) {
    return;
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].attention_window = has_rope[i] == 1 ? chunk : 0;
    layers[i].attends_in_chunks = layers[i].attention_window > 0;
  }
}

}  // namespace shardplan
