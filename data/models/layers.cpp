// Sources: huggingface/transformers 4.57.1, models/<family>/configuration_<family>.py and
// modeling_<family>.py.
#include "data/models/layers.h"

#include "data/models/config.h"
#include "data/models/config_keys.h"

namespace shardplan {

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
  put_windows(reading, window, pattern);
}

void put_windows(ConfigReading& reading, std::int64_t window, std::int64_t pattern) {
  for (std::int64_t i = 0; i < reading.model.num_layers(); ++i) {
    if ((i + 1) % pattern != 0) {
      reading.model.layers[static_cast<std::size_t>(i)].attention_window = window;
    }
  }
}

// Layers without a window know no positions, where there is a window at all; sliding_window_pattern
// may be letters, "LLLG", beside layer_types.
void read_windows_with_positions(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::string_view key = "sliding_window_pattern";
  const std::int64_t window = window_or(reading, "sliding_window", reading.family.window);
  const bool has_letters = fields.has(key) && fields.value(key).kind == JsonKind::kString;
  const std::int64_t pattern =
      has_letters ? std::ssize(fields.string(key))
                  : integer_or_null(reading, key, 1, reading.family.window_pattern, kMaxLayers);
  if (window > 0 && !read_layer_types(reading, {.sliding = window})) {
    put_windows(reading, window, pattern);
  }
  if (window == 0) {
    fields.ignore("layer_types");
  }
  for (LayerSpec& layer : reading.model.layers) {
    layer.has_rotary = window == 0 || layer.attention_window > 0;
  }
}

// Despite its name, no_rope_layers holds a 1 for layers with rotary embeddings; without it every
// no_rope_layer_interval-th layer has none.
void read_rotary_layers(ConfigReading& reading) {
  std::vector<LayerSpec>& layers = reading.model.layers;
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
  for (std::size_t i = 0; i < layers.size(); ++i) { layers[i].has_rotary = has_rope[i] == 1; }
}

// Layers with rotary embeddings attend within chunks.
void read_chunks(ConfigReading& reading) {
  const std::int64_t chunk = window_or(reading, "attention_chunk_size", 8192);
  read_rotary_layers(reading);
  if (read_layer_types(reading, {.chunked = chunk})) {
    return;
  }
  for (LayerSpec& layer : reading.model.layers) {
    layer.attention_window = layer.has_rotary ? chunk : 0;
    layer.attends_in_chunks = layer.attention_window > 0;
  }
}

}  // namespace shardplan
