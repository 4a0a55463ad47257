// Source: configuration_decilm.py, block_config.py and modeling_decilm.py of
// nvidia/Llama-3_3-Nemotron-Super-49B-v1.
#include "data/models/families/pruned.h"

#include <array>

#include "data/models/config_keys.h"

namespace shardplan {
namespace {

constexpr std::array kIgnored =
    std::to_array<std::string_view>({"intermediate_size", "num_key_value_heads"});

constexpr std::string_view kBlocks = "block_configs";
constexpr std::int64_t kFfnMultiple = 256;

InputError unlike_block(const ConfigReading& reading, std::size_t layer, const std::string& what) {
  return reading.fields.error(kBlocks, "found " + what + " in layer " + std::to_string(layer) +
                                           ", expected attention or none and an FFN or none");
}

// What stands in place of attention or of an FFN other than nothing is not described.
bool is_left_out(ConfigReading& reading, std::size_t layer, ObjectReader& part) {
  if (part.boolean_or("replace_with_linear", false)) {
    throw unlike_block(reading, layer, "replace_with_linear true");
  }
  return part.boolean_or("no_op", false);
}

// _ffn_mult_to_intermediate_size: two thirds of a multiple of the hidden width, rounded up.
std::int64_t ffn_width(const ModelSpec& model, double multiple) {
  const auto width =
      static_cast<std::int64_t>(2 * multiple * static_cast<double>(model.hidden) / 3);
  return (width + kFfnMultiple - 1) / kFfnMultiple * kFfnMultiple;
}

void read_block(ConfigReading& reading, std::size_t index, const JsonValue& block) {
  ModelSpec& model = reading.model;
  LayerSpec& layer = model.layers[index];
  ObjectReader parts(block, reading.file);
  ObjectReader attention(parts.value("attention"), reading.file);
  ObjectReader ffn(parts.value("ffn"), reading.file);
  layer.has_ffn = !is_left_out(reading, index, ffn);
  if (layer.has_ffn) {
    layer.ffn = ffn_width(model, ffn.number("ffn_mult", 0, 64));
  }
  if (is_left_out(reading, index, attention)) {
    layer.mixer = MixerKind::kNone;
    if (!layer.has_ffn) {
      throw unlike_block(reading, index, "no_op true twice");
    }
    return;
  }
  const std::int64_t group = attention.integer("n_heads_in_group", 1, model.num_heads);
  layer.heads = {.num_heads = model.num_heads,
                 .num_kv_heads = model.num_heads / group,
                 .qk_head_dim = model.head_dim,
                 .v_head_dim = model.head_dim};
}

void read_blocks(ConfigReading& reading) {
  const JsonValue& blocks = reading.fields.value(kBlocks);
  if (std::ssize(blocks.items) != reading.model.num_layers()) {
    throw reading.fields.error(kBlocks, "found " + describe(blocks) + ", expected a list of " +
                                            std::to_string(reading.model.num_layers()) +
                                            " objects");
  }
  for (std::size_t i = 0; i < blocks.items.size(); ++i) { read_block(reading, i, blocks.items[i]); }
}

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "nemotron-nas",
     .needs_no_ffn = true,
     .ffn_bias_key = "mlp_bias",
     .bias = AttentionBias::kByKey,
     .read_windows = read_blocks,
     .without_effect = kIgnored},
});

}  // namespace

std::span<const ModelFamily> pruned_families() {
  return kRows;
}

}  // namespace shardplan
