// Defaults are those of transformers 5.17, models/<family>/configuration_<family>.py.
#include "data/models/towers.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/models/config_keys.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxTowerLayers = 1024;

struct TowerClass {
  std::string_view model_type;
  TowerKind kind = TowerKind::kNone;
  std::string_view section = "vision_config";
};
constexpr std::array kTowerClasses = std::to_array<TowerClass>({
    {.model_type = "gemma3", .kind = TowerKind::kSiglip},
    {.model_type = "gemma4", .kind = TowerKind::kGemma4},
    {.model_type = "gemma4_unified", .kind = TowerKind::kGemma4Unified},
    {.model_type = "llama4", .kind = TowerKind::kLlama4},
    {.model_type = "mistral3", .kind = TowerKind::kPixtral},
    {.model_type = "qwen3_5", .kind = TowerKind::kQwen},
    {.model_type = "qwen3_5_moe", .kind = TowerKind::kQwen},
    {.model_type = "qwen3_vl", .kind = TowerKind::kQwen},
    {.model_type = "qwen3_vl_moe", .kind = TowerKind::kQwen},
    {.model_type = "voxtral", .kind = TowerKind::kWhisper, .section = "audio_config"},
});

// Sizes of a class, by the names that its files have for them.
struct TowerKeys {
  std::string_view layers = "num_hidden_layers";
  std::int64_t default_layers = 0;
  std::int64_t default_hidden = 0;
  std::int64_t default_ffn = 0;
};

TowerSpec sizes_of(ObjectReader& fields, TowerKind kind, const TowerKeys& keys) {
  return {.kind = kind,
          .layers = fields.integer_or(keys.layers, keys.default_layers, 1, kMaxTowerLayers),
          .hidden = fields.integer_or("hidden_size", keys.default_hidden, 1, kMaxHidden),
          .ffn = fields.integer_or("intermediate_size", keys.default_ffn, 1, kMaxFfn)};
}

// Elements of a square of pixels.
std::int64_t square(ObjectReader& fields, std::string_view channels, std::int64_t default_side) {
  const std::int64_t side = fields.integer_or("patch_size", default_side, 1, kMaxHidden);
  return fields.integer_or(channels, 3, 1, kMaxHeads) * side * side;
}

std::int64_t patches(ObjectReader& fields, std::int64_t default_image, std::int64_t default_patch) {
  const std::int64_t rows = fields.integer_or("image_size", default_image, 1, kMaxHidden) /
                            fields.integer_or("patch_size", default_patch, 1, kMaxHidden);
  return rows * rows;
}

TowerSpec read_qwen(ObjectReader& fields, std::string_view model_type) {
  TowerSpec tower = sizes_of(
      fields, TowerKind::kQwen,
      {.layers = "depth", .default_layers = 27, .default_hidden = 1152, .default_ffn = 4304});
  tower.patch =
      fields.integer_or("temporal_patch_size", 2, 1, kMaxHeads) * square(fields, "in_channels", 16);
  tower.positions = fields.integer_or("num_position_embeddings", 2304, 1, kMaxHidden);
  const std::int64_t merge = fields.integer_or("spatial_merge_size", 2, 1, kMaxHeads);
  tower.merged = merge * merge;
  tower.output = fields.integer_or("out_hidden_size", 3584, 1, kMaxHidden);
  const std::string_view mergers = "deepstack_visual_indexes";
  if (model_type.starts_with("qwen3_vl")) {  // Qwen3.5's class has none, whatever files list
    const bool is_listed = fields.has(mergers) && !fields.is_null(mergers);
    tower.mergers = is_listed ? std::ssize(fields.value(mergers).items) : 3;
  }
  return tower;
}

// Gemma 3's has no pooling head.
TowerSpec read_siglip(ObjectReader& fields) {
  if (fields.boolean_or("vision_use_head", true)) {
    return {};
  }
  TowerSpec tower = sizes_of(fields, TowerKind::kSiglip,
                             {.default_layers = 12, .default_hidden = 768, .default_ffn = 3072});
  tower.patch = square(fields, "num_channels", 16);
  tower.positions = patches(fields, 224, 16);
  return tower;
}

TowerSpec read_pixtral(ObjectReader& fields, ObjectReader& top) {
  TowerSpec tower = sizes_of(fields, TowerKind::kPixtral,
                             {.default_layers = 24, .default_hidden = 1024, .default_ffn = 4096});
  tower.patch = square(fields, "num_channels", 16);
  const std::int64_t merge = top.integer_or("spatial_merge_size", 2, 1, kMaxHeads);
  tower.merged = merge * merge;
  tower.projector_bias = top.boolean_or("multimodal_projector_bias", false);
  return tower;
}

TowerSpec read_llama4(ObjectReader& fields) {
  TowerSpec tower = sizes_of(fields, TowerKind::kLlama4,
                             {.default_layers = 34, .default_hidden = 768, .default_ffn = 5632});
  tower.patch = square(fields, "num_channels", 14);
  tower.positions = patches(fields, 448, 14) + 1;  // that of the class
  tower.adapted = fields.integer_or("projector_input_dim", 4096, 1, kMaxHidden);
  tower.output = fields.integer_or("vision_output_dim", 7680, 1, kMaxHidden);
  tower.projector_bias = fields.boolean_or("multi_modal_projector_bias", false);
  return tower;
}

TowerSpec read_whisper(ObjectReader& fields) {
  TowerSpec tower = sizes_of(fields, TowerKind::kWhisper,
                             {.default_layers = 32, .default_hidden = 1280, .default_ffn = 5120});
  tower.patch = fields.integer_or("num_mel_bins", 128, 1, kMaxHidden);
  tower.positions = fields.integer_or("max_source_positions", 1500, 1, kMaxHidden);
  return tower;
}

// Whether a section is there, null or not.
bool has_section(ObjectReader& top, std::string_view name) {
  return top.has(name) && !top.is_null(name);
}

// Sizes of a sound encoder that the class has as numbers of its own are those of all published
// models: others are not counted.
TowerSpec read_gemma4(ObjectReader& fields, ObjectReader& top, const std::string& file) {
  TowerSpec tower = sizes_of(fields, TowerKind::kGemma4,
                             {.default_layers = 16, .default_hidden = 768, .default_ffn = 3072});
  constexpr std::int64_t kColours = 3;
  const std::int64_t side = fields.integer_or("patch_size", 16, 1, kMaxHidden);
  tower.patch = kColours * side * side;
  tower.positions = fields.integer_or("position_embedding_size", 10240, 1, kMaxHidden);
  tower.head_dim = fields.integer_or("head_dim", 64, 1, kMaxHeadDim);
  const std::int64_t heads = fields.integer_or("num_attention_heads", 12, 1, kMaxHeads);
  if (heads * tower.head_dim != tower.hidden ||
      fields.integer_or("num_key_value_heads", 12, 1, kMaxHeads) != heads) {
    return {};
  }
  if (has_section(top, "audio_config")) {
    ObjectReader sound(top.value("audio_config"), file);
    tower.sound_layers = sound.integer_or("num_hidden_layers", 12, 1, kMaxTowerLayers);
    tower.sound_hidden = sound.integer_or("hidden_size", 1024, 8, kMaxHidden);
    tower.sound_output = sound.integer_or("output_proj_dims", 1536, 1, kMaxHidden);
    if (sound.integer_or("conv_kernel_size", 5, 1, kMaxHidden) != 5 ||
        sound.integer_or("num_attention_heads", 8, 1, kMaxHeads) != 8) {
      return {};
    }
  }
  return tower;
}

TowerSpec read_gemma4_unified(ObjectReader& fields, ObjectReader& top, const std::string& file) {
  constexpr std::int64_t kColours = 3;
  const std::int64_t side = fields.integer_or("patch_size", 16, 1, kMaxHidden) *
                            fields.integer_or("pooling_kernel_size", 3, 1, kMaxHeads);
  TowerSpec tower = {.kind = TowerKind::kGemma4Unified,
                     .hidden = fields.integer_or("mm_embed_dim", 3840, 1, kMaxHidden),
                     .patch = kColours * side * side,
                     .positions = fields.integer_or("mm_posemb_size", 1120, 1, kMaxHidden),
                     .output = fields.integer_or("output_proj_dims", 3840, 1, kMaxHidden)};
  if (has_section(top, "audio_config")) {
    ObjectReader sound(top.value("audio_config"), file);
    tower.sound_hidden = sound.integer_or("audio_embed_dim", 640, 1, kMaxHidden);
  }
  return tower;
}

}  // namespace

TowerSpec read_tower(const JsonValue& config, const std::string& model_type,
                     const std::string& file) {
  const auto* const found = std::ranges::find(kTowerClasses, model_type, &TowerClass::model_type);
  ObjectReader top(config, file);
  if (found == kTowerClasses.end() || !top.has(found->section) || top.is_null(found->section)) {
    return {};
  }
  ObjectReader fields(top.value(found->section), file);
  switch (found->kind) {
    case TowerKind::kQwen: return read_qwen(fields, model_type);
    case TowerKind::kSiglip: return read_siglip(fields);
    case TowerKind::kPixtral: return read_pixtral(fields, top);
    case TowerKind::kLlama4: return read_llama4(fields);
    case TowerKind::kWhisper: return read_whisper(fields);
    case TowerKind::kGemma4: return read_gemma4(fields, top, file);
    case TowerKind::kGemma4Unified: return read_gemma4_unified(fields, top, file);
    case TowerKind::kNone: break;
  }
  return {};
}

}  // namespace shardplan
