#include "data/models/config_keys.h"

#include <algorithm>
#include <utility>

#include "data/models/config.h"
#include "data/read/count_word.h"

namespace shardplan {
namespace {

// What mixes the tokens of layers that have no attention, in the words of this family and, in files
// of before transformers 5, of Mamba's.
bool is_word_of_mixer(const ModelFamily& family, const std::string& word) {
  return family.mixer != MixerKind::kAttention &&
         (word == family.mixer_word || (is_mamba(family.mixer) && word == "mamba"));
}

bool is_word_of_attention(const ModelFamily& family, const std::string& word) {
  return word == "full_attention" || word == family.attention_word ||
         (family.mixer != MixerKind::kAttention && word == "attention");
}

void read_layer_type(const ConfigReading& reading, const std::string& type, Widths widths,
                     LayerSpec& layer) {
  const ModelFamily& family = reading.family;
  const std::string_view key = "layer_types";
  layer.attention_window = 0;
  if (is_word_of_attention(family, type)) {
    return;
  }
  if (is_word_of_mixer(family, type)) {
    layer.mixer = family.mixer;
    return;
  }
  const bool is_sliding = type == "sliding_attention";
  if (!is_sliding && type != "chunked_attention") {
    throw unknown_word(reading, key, type,
                       family.mixer == MixerKind::kAttention
                           ? "full_attention, sliding_attention or chunked_attention"
                           : "full_attention or " + std::string(family.mixer_word));
  }
  layer.attention_window = is_sliding ? widths.sliding : widths.chunked;
  layer.attends_in_chunks = !is_sliding;
  if (layer.attention_window == 0) {
    throw unknown_word(
        reading, key, type,
        (is_sliding ? "a sliding_window" : "an attention_chunk_size") + std::string(" with it"));
  }
}

struct ActivationWord {
  std::string_view word;
  Activation activation;
};
// transformers 5.17 activations.py ACT2CLS.
constexpr std::array kActivationWords = std::to_array<ActivationWord>({
    {.word = "gelu", .activation = Activation::kGelu},
    {.word = "gelu_pytorch_tanh", .activation = Activation::kGelu},
    {.word = "gelu_new", .activation = Activation::kNewGelu},
    {.word = "relu", .activation = Activation::kRelu},
    {.word = "relu2", .activation = Activation::kReluSquared},
    {.word = "silu", .activation = Activation::kSilu},
    {.word = "swish", .activation = Activation::kSilu},
});

}  // namespace

void read_activation(ConfigReading& reading) {
  const std::string_view key = reading.family.activation_key;
  if (key.empty() || !is_given(reading, key)) {
    return;
  }
  const std::string word = reading.fields.string(key);
  const auto* const found = std::ranges::find(kActivationWords, word, &ActivationWord::word);
  if (found == kActivationWords.end()) {
    throw unknown_word(reading, key, word,
                       "gelu, gelu_new, gelu_pytorch_tanh, relu, relu2, silu or swish");
  }
  reading.model.activation = found->activation;
}

std::int64_t integer_or_null(ConfigReading& reading, std::string_view key, std::int64_t null,
                             std::int64_t absent, std::int64_t high) {
  return reading.fields.integer_or(key, reading.fields.is_null(key) ? null : absent, null, high);
}

std::int64_t class_default(ConfigReading& reading, std::string_view key, std::int64_t value,
                           std::int64_t high) {
  if (!reading.fields.has(key)) {
    reading.warn(key, "found nothing, took " + std::to_string(value) + ", the default of " +
                          std::string(reading.family.model_type));
  }
  return reading.fields.integer_or(key, value, 1, high);
}

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

bool is_given(const ConfigReading& reading, std::string_view key) {
  return reading.fields.has(key) && !reading.fields.is_null(key);
}

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

std::optional<std::vector<std::string>> words_by_layer(ConfigReading& reading,
                                                       std::string_view key) {
  if (!is_given(reading, key)) {
    reading.fields.ignore(key);
    return std::nullopt;
  }
  const JsonValue& list = reading.fields.value(key);
  const std::int64_t num_layers = reading.model.num_layers();
  const std::int64_t surplus = std::ssize(list.items) - num_layers;
  const bool is_long = surplus > 0 && !reading.family.lists_prediction_layers;
  if (list.kind != JsonKind::kArray || surplus < 0 || is_long) {
    throw reading.fields.error(key, "found " + describe(list) + ", expected a list of " +
                                        std::to_string(num_layers) + " strings");
  }
  std::vector<std::string> words;
  for (const JsonValue& word : list.items) {
    if (word.kind != JsonKind::kString) {
      throw reading.fields.error(key, "found " + describe(word) + ", expected a list of strings");
    }
    words.push_back(word.string);
  }
  words.resize(static_cast<std::size_t>(num_layers));
  return words;
}

std::optional<std::vector<std::int64_t>> numbers_by_layer(ConfigReading& reading,
                                                          std::string_view key, std::int64_t low,
                                                          std::int64_t high) {
  std::optional<std::vector<std::int64_t>> numbers = integers(reading, key, low, high);
  if (!numbers) {
    return std::nullopt;
  }
  const std::int64_t num_layers = reading.model.num_layers();
  const std::int64_t surplus = std::ssize(*numbers) - num_layers;
  if (surplus < 0 || (surplus > 0 && !reading.family.lists_prediction_layers)) {
    throw reading.fields.error(key, "found " + std::to_string(numbers->size()) +
                                        " numbers, expected one per layer, " +
                                        std::to_string(num_layers));
  }
  numbers->resize(static_cast<std::size_t>(num_layers));
  return numbers;
}

std::int64_t same_in_all_layers(ConfigReading& reading, std::string_view key, std::int64_t low,
                                std::int64_t high) {
  if (reading.fields.value(key).kind != JsonKind::kArray) {
    return reading.fields.integer(key, low, high);
  }
  const auto numbers = integers(reading, key, low, high);
  if (numbers->empty()) {
    throw reading.fields.error(key, "found an empty list, expected a number a layer");
  }
  const auto [least, most] = std::ranges::minmax(*numbers);
  if (least != most) {
    throw reading.fields.error(key, "found " + std::to_string(least) + " and " +
                                        std::to_string(most) + ", expected the same in all layers");
  }
  return least;
}

InputError unknown_word(const ConfigReading& reading, std::string_view key, const std::string& word,
                        const std::string& expected) {
  JsonValue found;
  found.kind = JsonKind::kString;
  found.string = word;
  return reading.fields.error(key, "found " + describe(found) + ", expected " + expected);
}

bool read_layer_types(ConfigReading& reading, Widths widths) {
  const auto types = words_by_layer(reading, "layer_types");
  if (!types) {
    return false;
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    read_layer_type(reading, (*types)[i], widths, reading.model.layers[i]);
  }
  return true;
}

void read_layer_config(ConfigReading& reading) {
  const std::string_view key = "per_layer_config";
  if (!is_given(reading, key)) {
    return reading.fields.ignore(key);
  }
  ModelSpec& model = reading.model;
  for (const JsonMember& member : reading.fields.value(key).members) {
    const std::optional<std::int64_t> index = count_of(member.name);
    if (!index || *index >= model.num_layers()) {
      throw unknown_word(reading, key, member.name, "indices of layers");
    }
    LayerSpec& layer = model.layers[static_cast<std::size_t>(*index)];
    AttentionHeads heads = model.heads_of(layer);
    ObjectReader fields(member.value, reading.file);
    heads.num_heads = fields.integer_or("num_attention_heads", heads.num_heads, 1, kMaxHeads);
    heads.num_kv_heads = fields.integer_or("num_key_value_heads", heads.num_kv_heads, 1, kMaxHeads);
    if (fields.has("head_dim")) {
      heads.qk_head_dim = fields.integer("head_dim", 1, kMaxHeadDim);
      heads.v_head_dim = heads.qk_head_dim;
    }
    fields.finish();
    layer.heads = heads == model.heads_of({}) ? AttentionHeads{} : heads;
  }
}

std::int64_t window_or(ConfigReading& reading, std::string_view key, std::int64_t fallback) {
  return integer_or_null(reading, key, 0, fallback, kMaxWindow);
}

std::int64_t window_if_used(ConfigReading& reading) {
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  return reading.fields.boolean_or("use_sliding_window", false) ? window : 0;
}

bool scales_positions(ConfigReading& reading, std::string_view key) {
  if (!reading.fields.has(key)) {
    return false;
  }
  const auto& members = reading.fields.value(key).members;
  const auto has = [&members](std::string_view name) {
    return std::ranges::find(members, name, &JsonMember::name) != members.end();
  };
  return has("factor") && !has("original_max_position_embeddings");
}

ConfigReading section_of(ConfigReading& reading, std::string_view key) {
  ObjectReader section(reading.fields.value(key), reading.file);
  return {.fields = std::move(section),
          .family = reading.family,
          .model = {},
          .warnings = {},
          .file = reading.file};
}

}  // namespace shardplan
