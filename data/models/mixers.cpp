// Source: huggingface/transformers 5.17, models/<family>/configuration_<family>.py.
#include "data/models/mixers.h"

#include <algorithm>

#include "data/models/config.h"
#include "data/models/config_keys.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxConvolution = 1024;

// Layers whose index leaves `offset` by `period` have attention.
void put_attention_every(ConfigReading& reading, std::int64_t period, std::int64_t offset) {
  for (std::size_t i = 0; i < reading.model.layers.size(); ++i) {
    const bool attends = static_cast<std::int64_t>(i) % period == offset;
    reading.model.layers[i].mixer = attends ? MixerKind::kAttention : reading.family.mixer;
  }
}

// full_attn_layers and kda_layers, which have every layer once, by its number from 1.
void put_listed_attention(ConfigReading& reading, ConfigReading& inner) {
  ModelSpec& model = reading.model;
  const auto full = integers(inner, "full_attn_layers", 1, model.num_layers());
  const auto delta = integers(inner, "kda_layers", 1, model.num_layers());
  if (!full) {
    return;
  }
  if (delta && std::ssize(*full) + std::ssize(*delta) != model.num_layers()) {
    throw inner.fields.error("kda_layers", "found " + std::to_string(delta->size()) +
                                               " layers beside " + std::to_string(full->size()) +
                                               " full_attn_layers, expected " +
                                               std::to_string(model.num_layers()) + " together");
  }
  for (LayerSpec& layer : model.layers) { layer.mixer = MixerKind::kKimiDelta; }
  for (const std::int64_t number : *full) {
    model.layers[static_cast<std::size_t>(number - 1)].mixer = MixerKind::kAttention;
  }
}

std::int64_t delta_size(ConfigReading& reading, std::string_view key, std::int64_t fallback) {
  return reading.fields.integer_or(key, fallback, 1, kMaxHeads);
}

// One letter of Nemotron-H's pattern, or its word in layers_block_type.
struct PatternWord {
  char letter;
  std::string_view word;
  std::string_view older_word;
};
constexpr PatternWord kPatternWords[] = {
    {.letter = 'M', .word = "linear_attention", .older_word = "mamba"},
    {.letter = '*', .word = "full_attention", .older_word = "attention"},
    {.letter = '-', .word = "mlp", .older_word = "mlp"},
    {.letter = 'E', .word = "moe", .older_word = "moe"},
};

void set_pattern_layer(LayerSpec& layer, char letter) {
  const bool mixes = letter == 'M' || letter == '*';
  layer.mixer = letter == 'M'   ? MixerKind::kMamba2
                : letter == '*' ? MixerKind::kAttention
                                : MixerKind::kNone;
  layer.has_ffn = !mixes;
  layer.is_moe = letter == 'E';
  layer.has_rotary = false;
}

char letter_of(const ConfigReading& reading, const std::string& word) {
  for (const PatternWord& each : kPatternWords) {
    if (word == each.word || word == each.older_word) {
      return each.letter;
    }
  }
  throw unknown_word(reading, "layers_block_type", word,
                     "linear_attention, full_attention, mlp or moe");
}

std::string pattern_letters(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  if (is_given(reading, "hybrid_override_pattern")) {
    fields.ignore("layers_block_type");
    return fields.string("hybrid_override_pattern");
  }
  std::string letters;
  for (const std::string& word : fields.strings("layers_block_type")) {
    letters += letter_of(reading, word);
  }
  return letters;
}

}  // namespace

void read_gated_delta_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::int64_t heads = reading.model.num_heads;
  const bool is_olmo = reading.family.norms_after;
  const std::int64_t key_heads = delta_size(reading, "linear_num_key_heads", is_olmo ? heads : 16);
  // OlmoHybridConfig: three quarters of the hidden width over the heads, values twice as wide.
  const std::int64_t key_dim = delta_size(reading, "linear_key_head_dim",
                                          is_olmo ? reading.model.hidden * 3 / 4 / key_heads : 128);
  reading.model.delta = {
      .key_heads = key_heads,
      .value_heads = delta_size(reading, "linear_num_value_heads", is_olmo ? heads : 32),
      .key_head_dim = key_dim,
      .value_head_dim = delta_size(reading, "linear_value_head_dim", is_olmo ? 2 * key_dim : 128),
      .convolution = fields.integer_or("linear_conv_kernel_dim", 4, 1, kMaxConvolution)};
  const std::int64_t interval =
      fields.integer_or("full_attention_interval", 4, 1, reading.model.num_layers() + 1);
  if (!read_layer_types(reading, {})) {
    put_attention_every(reading, interval, interval - 1);
  }
}

void read_kimi_delta_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::string_view key = "linear_attn_config";
  std::int64_t heads = fields.integer_or("linear_num_heads", 32, 1, kMaxHeads);
  std::int64_t width = fields.integer_or("linear_head_dim", 128, 1, kMaxHeadDim);
  std::int64_t tokens = fields.integer_or("linear_conv_kernel_dim", 4, 1, kMaxConvolution);
  const bool has_types = read_layer_types(reading, {});
  if (!has_types) {
    put_attention_every(reading, 4, 0);
    model.layers.front().mixer = MixerKind::kKimiDelta;
  }
  if (is_given(reading, key)) {
    ConfigReading inner = section_of(reading, key);
    heads = inner.fields.integer_or("num_heads", heads, 1, kMaxHeads);
    width = inner.fields.integer_or("head_dim", width, 1, kMaxHeadDim);
    tokens = inner.fields.integer_or("short_conv_kernel_size", tokens, 1, kMaxConvolution);
    if (!has_types) {
      put_listed_attention(reading, inner);
    }
  }
  fields.ignore(key);
  model.delta = {.key_heads = heads,
                 .value_heads = heads,
                 .key_head_dim = width,
                 .value_head_dim = width,
                 .convolution = tokens};
  for (LayerSpec& layer : model.layers) { layer.has_rotary = false; }
}

void read_lightning_layers(ConfigReading& reading) {
  const auto types = numbers_by_layer(reading, "attn_type_list", 0, 1);
  if (read_layer_types(reading, {})) {
    return;
  }
  if (!types) {
    return put_attention_every(reading, 2, 0);
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    reading.model.layers[i].mixer =
        (*types)[i] == 1 ? MixerKind::kAttention : MixerKind::kLightning;
  }
}

// The inner width is that of all heads, which mamba_d_head may leave to it ("auto").
void read_mamba2(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  MambaSpec& mamba = reading.model.mamba;
  const std::int64_t expand = fields.integer_or("mamba_expand", 2, 1, 64);
  mamba.num_heads = fields.integer_or("mamba_n_heads", 128, 1, kMaxHeads);
  mamba.inner = fields.integer_or("mamba_d_ssm", expand * reading.model.hidden, 1, 64 * kMaxHidden);
  if (mamba.inner % mamba.num_heads != 0) {
    throw fields.error("mamba_n_heads", "found " + std::to_string(mamba.num_heads) +
                                            ", expected a divisor of the inner width " +
                                            std::to_string(mamba.inner));
  }
  mamba.head_dim = mamba.inner / mamba.num_heads;
  const bool is_auto =
      fields.has("mamba_d_head") && fields.value("mamba_d_head").kind == JsonKind::kString;
  if (!is_auto &&
      fields.integer_or("mamba_d_head", mamba.head_dim, 1, kMaxHeadDim) != mamba.head_dim) {
    throw fields.error("mamba_d_head", "found " + describe(fields.value("mamba_d_head")) +
                                           ", expected " + std::to_string(mamba.head_dim) +
                                           ", the inner width over the heads");
  }
  mamba.groups = fields.integer_or("mamba_n_groups", 1, 1, kMaxHeads);
  mamba.state = fields.integer_or("mamba_d_state", 256, 1, kMaxHeadDim);
  mamba.convolution = fields.integer_or("mamba_d_conv", 4, 1, kMaxConvolution);
  mamba.chunk = fields.integer_or("mamba_chunk_size", 256, 1, kMaxWindow);
  mamba.convolution_bias = fields.boolean_or("mamba_conv_bias", true);
  mamba.projection_bias = fields.boolean_or("mamba_proj_bias", false);
}

void read_bamba_layers(ConfigReading& reading) {
  read_mamba2(reading);
  const auto listed = layer_indices(reading, "attn_layer_indices");
  if (read_layer_types(reading, {})) {
    return;
  }
  for (LayerSpec& layer : reading.model.layers) { layer.mixer = MixerKind::kMamba2; }
  for (const std::int64_t i : listed.value_or(std::vector<std::int64_t>())) {
    reading.model.layers[static_cast<std::size_t>(i)].mixer = MixerKind::kAttention;
  }
}

void read_falcon_h1_layers(ConfigReading& reading) {
  read_mamba2(reading);
  MambaSpec& mamba = reading.model.mamba;
  mamba.gated_norm = reading.fields.boolean_or("mamba_rms_norm", false);
  if (reading.fields.boolean_or("projectors_bias", mamba.projection_bias) !=
      mamba.projection_bias) {
    throw reading.fields.error("projectors_bias",
                               "found it unlike mamba_proj_bias, expected the "
                               "same: one of both alone is not supported");
  }
  for (LayerSpec& layer : reading.model.layers) { layer.has_mamba_beside = true; }
}

// Without experts the shared FFN is the dense one.
void read_granite_hybrid_layers(ConfigReading& reading) {
  read_mamba2(reading);
  const std::string positions = reading.fields.string_or("position_embedding_type", "");
  if (!read_layer_types(reading, {})) {
    for (LayerSpec& layer : reading.model.layers) { layer.mixer = MixerKind::kMamba2; }
  }
  for (LayerSpec& layer : reading.model.layers) { layer.has_rotary = positions == "rope"; }
}

void read_jamba_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  MambaSpec& mamba = reading.model.mamba;
  mamba.inner = fields.integer_or("mamba_expand", 2, 1, 64) * reading.model.hidden;
  mamba.state = fields.integer_or("mamba_d_state", 16, 1, kMaxHeadDim);
  mamba.convolution = fields.integer_or("mamba_d_conv", 4, 1, kMaxConvolution);
  const bool is_auto =
      fields.has("mamba_dt_rank") && fields.value("mamba_dt_rank").kind == JsonKind::kString;
  const std::int64_t rank = (reading.model.hidden + 15) / 16;
  mamba.step_rank = is_auto ? rank : fields.integer_or("mamba_dt_rank", rank, 1, kMaxHidden);
  mamba.convolution_bias = fields.boolean_or("mamba_conv_bias", true);
  mamba.projection_bias = fields.boolean_or("mamba_proj_bias", false);
  mamba.inner_norms = true;
  const std::int64_t period = fields.integer_or("attn_layer_period", 8, 1, kMaxLayers);
  const std::int64_t offset = fields.integer_or("attn_layer_offset", 4, 0, period - 1);
  put_attention_every(reading, period, offset);
  for (LayerSpec& layer : reading.model.layers) { layer.has_rotary = false; }
}

void read_convolution_layers(ConfigReading& reading) {
  reading.model.short_convolution = {
      .tokens = reading.fields.integer_or("conv_L_cache", 3, 1, kMaxConvolution),
      .has_bias = reading.fields.boolean_or("conv_bias", false)};
  const auto full = layer_indices(reading, "full_attn_idxs");
  if (read_layer_types(reading, {}) || !full) {
    return;
  }
  for (LayerSpec& layer : reading.model.layers) { layer.mixer = MixerKind::kShortConvolution; }
  for (const std::int64_t i : *full) {
    reading.model.layers[static_cast<std::size_t>(i)].mixer = MixerKind::kAttention;
  }
}

std::int64_t count_pattern_layers(ConfigReading& reading) {
  return std::ssize(pattern_letters(reading));
}

void read_pattern_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const std::string letters = pattern_letters(reading);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (std::ranges::find(kPatternWords, letters[i], &PatternWord::letter) ==
        std::end(kPatternWords)) {
      throw unknown_word(reading, "hybrid_override_pattern", letters, "letters M, *, - and E");
    }
    set_pattern_layer(model.layers[i], letters[i]);
  }
  MambaSpec& mamba = model.mamba;
  mamba.num_heads = fields.integer_or("mamba_num_heads", 128, 1, kMaxHeads);
  mamba.head_dim = fields.integer_or("mamba_head_dim", 64, 1, kMaxHeadDim);
  mamba.inner = mamba.num_heads * mamba.head_dim;
  mamba.groups = fields.integer_or("n_groups", 8, 1, kMaxHeads);
  mamba.state = fields.integer_or("ssm_state_size", 128, 1, kMaxHeadDim);
  mamba.convolution = fields.integer_or("conv_kernel", 4, 1, kMaxConvolution);
  mamba.chunk = fields.integer_or("chunk_size", 128, 1, kMaxWindow);
  mamba.convolution_bias = fields.boolean_or("use_conv_bias", true);
  const bool use_bias = fields.boolean_or("use_bias", false);
  mamba.projection_bias = fields.boolean_or("mamba_proj_bias", use_bias);
}

// index_topk_freq: layers whose distance from index_skip_topk_offset it divides have an indexer of
// their own, and all before that offset; index_topk_pattern says the same by letters, F and S.
void read_indexer_layers(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.indexer = {.num_heads = fields.integer_or("index_n_heads", reading.family.indexer.num_heads,
                                                  1, kMaxHeads),
                   .head_dim = fields.integer_or("index_head_dim", 128, 1, kMaxHeadDim),
                   .topk = fields.integer_or("index_topk", 2048, 1, kMaxWindow)};
  read_layer_types(reading, {});
  const auto types = words_by_layer(reading, "indexer_types");
  const std::int64_t frequency = integer_or_null(reading, "index_topk_freq", 1, 1, kMaxLayers);
  const std::int64_t skipped = fields.integer_or("index_skip_topk_offset", 2, 0, kMaxLayers);
  const std::string letters = fields.string_or("index_topk_pattern", "");
  for (std::int64_t i = 0; i < model.num_layers(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    LayerSpec& layer = model.layers[at];
    if (types) {
      layer.has_indexer = (*types)[at] == "full";
    } else if (!letters.empty()) {
      layer.has_indexer = at >= letters.size() || letters[at] != 'S';
    } else {
      layer.has_indexer = std::max<std::int64_t>(i - skipped + 1, 0) % frequency == 0;
    }
  }
}

}  // namespace shardplan
