#include "data/models/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "data/models/attention.h"
#include "data/models/family.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxHidden = std::int64_t{1} << 20;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 27;
constexpr std::int64_t kMaxFfn = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;

// So that bytes, some tens of times as many, stay exact in 64 bits.
constexpr double kMaxParameters = 1125899906842624.0;  // 2^50

// Configurations of text and images: the text model stands under text_config.
struct Wrapper {
  std::string_view model_type;
  std::string_view text_model_type;
};
constexpr std::array kWrappers = std::to_array<Wrapper>({
    {.model_type = "gemma3", .text_model_type = "gemma3_text"},
    {.model_type = "llama4", .text_model_type = "llama4_text"},
    {.model_type = "mistral3", .text_model_type = "mistral"},
    {.model_type = "qwen3_vl", .text_model_type = "qwen3_vl_text"},
    {.model_type = "qwen3_vl_moe", .text_model_type = "qwen3_vl_moe_text"},
});
constexpr std::array kWrapperKeys = std::to_array<std::string_view>({
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
});

enum class Standing { kWhole, kTextConfig };  // is the object the file, or its text_config?

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) { names.emplace_back(family.model_type); }
  for (const Wrapper& wrapper : kWrappers) { names.emplace_back(wrapper.model_type); }
  std::ranges::sort(names);
  return names;
}

InputError unknown_model_type(const ObjectReader& fields, const std::string& found) {
  const std::vector<std::string> names = known_model_types();
  std::string list;
  for (const std::string& name : names) { list += (list.empty() ? "" : ", ") + name; }
  const std::string nearest = nearest_name(found, names);
  const std::string hint = nearest.empty() ? "" : " (did you mean \"" + nearest + "\"?)";
  return fields.error("model_type", "found " + (found.empty() ? "nothing" : found) +
                                        ", expected one of " + list + hint);
}

const ModelFamily* find_family(std::string_view model_type) {
  for (const ModelFamily& family : model_families()) {
    if (family.model_type == model_type) {
      return &family;
    }
  }
  return nullptr;
}

const Wrapper* find_wrapper(std::string_view model_type) {
  for (const Wrapper& wrapper : kWrappers) {
    if (wrapper.model_type == model_type) {
      return &wrapper;
    }
  }
  return nullptr;
}

std::optional<bool> explicit_boolean(ObjectReader& fields, std::string_view key) {
  if (!fields.has(key) || fields.is_null(key)) {
    fields.ignore(key);
    return std::nullopt;
  }
  return fields.boolean(key);
}

// One of the five sizes: a whole config.json must give it, a text_config may leave it to the class.
std::int64_t size(ConfigReading& reading, Standing standing, std::string_view key,
                  std::int64_t class_default, std::int64_t high) {
  return standing == Standing::kTextConfig ? reading.fields.integer_or(key, class_default, 1, high)
                                           : reading.fields.integer(key, 1, high);
}

// With a factor a model may have more positions than it states.
bool scales_positions(ObjectReader& fields, std::string_view key) {
  return fields.has(key) && std::ranges::find(fields.value(key).members, "factor",
                                              &JsonMember::name) != fields.value(key).members.end();
}

void read_sizes(ConfigReading& reading, Standing standing) {
  const ModelFamily& family = reading.family;
  ModelSpec& model = reading.model;
  model.hidden = size(reading, standing, "hidden_size", family.hidden, kMaxHidden);
  model.ffn = size(reading, standing, "intermediate_size", family.ffn, kMaxFfn);
  model.vocab = size(reading, standing, "vocab_size", family.vocab, kMaxVocab);
  model.num_heads = size(reading, standing, "num_attention_heads", family.num_heads, kMaxHeads);
  const std::int64_t num_layers =
      size(reading, standing, "num_hidden_layers", family.num_layers, kMaxLayers);
  model.layers.resize(static_cast<std::size_t>(num_layers));
  const std::int64_t positions =
      reading.fields.integer_or("max_position_embeddings", 0, 1, kMaxSequence);
  const bool are_scaled = scales_positions(reading.fields, "rope_scaling") ||
                          scales_positions(reading.fields, "rope_parameters");
  model.max_sequence_length = are_scaled ? 0 : positions;
}

// A cap of null is none.
bool is_capped(const ConfigReading& reading, std::string_view key) {
  return reading.fields.has(key) ? !reading.fields.is_null(key) : reading.family.soft_caps;
}

// Keys that are known and change nothing here, but that the reader of the answer should know of.
void read_notes(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  for (const std::string_view key : reading.family.not_counted) {
    if (fields.has(key) && !fields.is_null(key)) {
      reading.warn(key,
                   "found " + describe(fields.value(key)) +
                       ": the operation it adds is not counted but by the framework transformers");
    }
    fields.ignore(key);
  }
  if (fields.has("quantization_config")) {
    reading.warn("quantization_config", "parameters are counted as if not quantized");
  }
  fields.ignore("quantization_config");
  if (fields.has("auto_map")) {
    reading.warn("auto_map", "the remote code it names is not run; model_type decides");
  }
  fields.ignore("auto_map");
  const std::string dtype = fields.string_or("dtype", "");
  const std::string torch_dtype = fields.string_or("torch_dtype", "");
  if (!dtype.empty() && !torch_dtype.empty() && dtype != torch_dtype) {
    reading.warn("dtype", "found " + dtype + " but torch_dtype " + torch_dtype +
                              ": dtype counts; neither changes the answer");
  }
  // Overrides by layer would change shapes; none is modelled.
  if (fields.has("per_layer_config") && !fields.is_null("per_layer_config")) {
    throw fields.error("per_layer_config",
                       "found " + describe(fields.value("per_layer_config")) +
                           ", expected none: overrides by layer are not supported");
  }
  fields.ignore("per_layer_config");
}

// An upper bound in floating point, before anyone counts in integers.
void check_parameters(const ConfigReading& reading) {
  const ModelSpec& model = reading.model;
  const auto hidden = static_cast<double>(model.hidden);
  const auto layers = static_cast<double>(model.num_layers() + model.num_mtp_layers);
  const auto heads = static_cast<double>(model.num_heads);
  const auto head_dim = static_cast<double>(model.head_dim + model.mla.v_head_dim);
  const auto ffn =
      static_cast<double>(model.ffn) + static_cast<double>(model.moe.shared_ffn) +
      static_cast<double>(model.moe.num_experts) * static_cast<double>(model.moe.expert_ffn + 1);
  const auto lora = static_cast<double>(model.mla.q_lora_rank + model.mla.kv_lora_rank);
  const double attention = 4 * heads * head_dim * (hidden + lora) + hidden * lora;
  const double parameters =
      layers * (attention + 3 * hidden * ffn) + 2 * hidden * static_cast<double>(model.vocab);
  if (parameters > kMaxParameters) {
    throw reading.fields.error("", "found sizes that make about 1e" +
                                       std::to_string(std::lround(std::log10(parameters))) +
                                       " parameters, expected at most 2^50");
  }
}

void close_keys(ObjectReader& fields, std::span<const std::string_view> without_effect,
                UnknownKeys unknown_keys, std::vector<std::string>& warnings) {
  for (const std::string_view key : keys_without_effect()) { fields.ignore(key); }
  for (const std::string_view key : without_effect) { fields.ignore(key); }
  fields.ignore_unset();
  if (unknown_keys == UnknownKeys::kRefuse) {
    fields.finish();
  }
  for (const InputError& error : fields.unknown()) {
    warnings.push_back(std::string(error.what()) + "; ignored");
  }
}

ConfigReading read_text_model(const JsonValue& config, const ModelFamily& family,
                              const std::string& file, Standing standing) {
  ConfigReading reading{
      .fields = ObjectReader(config, file), .family = family, .model = {}, .warnings = {}};
  reading.fields.ignore("model_type");
  reading.model.family = family.model_type;
  reading.model.norms_per_layer = family.norms_per_layer;
  reading.model.qk_norm =
      family.qk_norm || (family.qk_norm_key && reading.fields.boolean_or("use_qk_norm", false));
  reading.model.caps_logits = is_capped(reading, "final_logit_softcapping");
  reading.model.caps_scores = is_capped(reading, "attn_logit_softcapping");
  read_sizes(reading, standing);
  read_attention(reading);
  if (family.ffn_bias_key) {
    reading.model.ffn_bias = reading.fields.boolean_or("mlp_bias", false);
  }
  family.read_experts(reading);
  family.read_windows(reading);
  reading.model.tied_embeddings =
      explicit_boolean(reading.fields, "tie_word_embeddings").value_or(family.tied_embeddings);
  read_notes(reading);
  check_parameters(reading);
  return reading;
}

// 0: no release of transformers is named.
int transformers_release(ObjectReader& top) {
  return std::atoi(top.string_or("transformers_version", "").c_str());
}

// The explicit value of either place. Of two that disagree transformers 4 goes by text_config
// (modeling_utils.py of 4.57, tie_weights). Release 5 writes both whether or not a file had them
// and, where the model's is true, still ties only tables that are equal (modeling_utils.py of 5.18,
// tie_weights; Mistral 3's class says true, its text model's false, the published tables differ).
void read_outer_tie(ConfigReading& text, ObjectReader& top) {
  const std::string_view key = "tie_word_embeddings";
  const std::optional<bool> outer = explicit_boolean(top, key);
  if (!outer) {
    return;
  }
  const std::optional<bool> inner = explicit_boolean(text.fields, key);
  if (!inner || *inner == *outer) {
    text.model.tied_embeddings = *outer;
    return;
  }
  const std::string found =
      std::string("found ") + (*outer ? "true" : "false") + " but the opposite in text_config, ";
  const int release = transformers_release(top);
  if (release == 0) {
    throw top.error(key, found + "expected one answer");
  }
  text.model.tied_embeddings = release < 5 && *inner;
  text.warnings.emplace_back(
      top.error(key, found + "took " + (text.model.tied_embeddings ? "true" : "false") +
                         " as transformers " + std::to_string(release) + " does")
          .what());
}

ModelConfig read_wrapped(const JsonValue& config, const Wrapper& wrapper, const std::string& file,
                         UnknownKeys unknown_keys) {
  ObjectReader top(config, file);
  top.ignore("model_type");
  if (!top.has("text_config")) {
    throw top.error("text_config",
                    "found nothing, expected the text model (a file of a text model "
                    "alone has model_type " +
                        std::string(wrapper.text_model_type) + ")");
  }
  const JsonValue& text_config = top.value("text_config");
  ObjectReader inner(text_config, file);
  const std::string type = inner.string_or("model_type", std::string(wrapper.text_model_type));
  if (type != wrapper.text_model_type) {
    throw inner.error("model_type", "found " + type + ", expected " +
                                        std::string(wrapper.text_model_type) + " within " +
                                        std::string(wrapper.model_type));
  }
  ConfigReading text =
      read_text_model(text_config, *find_family(type), file, Standing::kTextConfig);
  read_outer_tie(text, top);
  text.warnings.insert(
      text.warnings.begin(),
      top.error("", "counts the text model only, without the vision tower").what());
  ConfigReading outer{.fields = std::move(top), .family = text.family, .model = {}, .warnings = {}};
  read_notes(outer);
  close_keys(outer.fields, kWrapperKeys, unknown_keys, outer.warnings);
  close_keys(text.fields, text.family.without_effect, unknown_keys, text.warnings);
  text.warnings.insert(text.warnings.end(), outer.warnings.begin(), outer.warnings.end());
  return {.model = std::move(text.model), .warnings = std::move(text.warnings)};
}

bool has_no_head(std::string_view architecture) {
  constexpr std::array kHeadless = std::to_array<std::string_view>(
      {"ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model"});
  return !architecture.ends_with("LMHeadModel") &&
         std::ranges::any_of(
             kHeadless, [&](std::string_view ending) { return architecture.ends_with(ending); });
}

// Classifiers, reward models and bare decoders are counted as the language model of their type.
void read_architectures(ObjectReader& fields, ModelConfig& config) {
  if (!fields.has("architectures")) {
    return;
  }
  const std::vector<JsonValue>& names = fields.value("architectures").items;
  const auto headless =
      std::ranges::find_if(names, [](const JsonValue& name) { return has_no_head(name.string); });
  if (headless != names.end()) {
    const ModelSpec& model = config.model;
    const std::int64_t head = model.tied_embeddings ? 0 : model.vocab * model.hidden;
    const std::string found = "found " + headless->string +
                              ", a model without a language-model head; one is counted, of " +
                              std::to_string(head) + " parameters, and its loss";
    config.warnings.emplace_back(fields.error("architectures", found).what());
  }
}

}  // namespace

ModelConfig read_model_config(const JsonValue& config, const std::string& name,
                              const std::string& file, UnknownKeys unknown_keys) {
  ObjectReader fields(config, file);
  const std::string model_type = fields.string_or("model_type", "");
  ModelConfig result;
  if (const Wrapper* wrapper = find_wrapper(model_type)) {
    result = read_wrapped(config, *wrapper, file, unknown_keys);
  } else if (const ModelFamily* family = find_family(model_type)) {
    ConfigReading reading = read_text_model(config, *family, file, Standing::kWhole);
    close_keys(reading.fields, family->without_effect, unknown_keys, reading.warnings);
    result = {.model = std::move(reading.model), .warnings = std::move(reading.warnings)};
  } else {
    throw unknown_model_type(fields, model_type);
  }
  read_architectures(fields, result);
  result.model.name = name;
  return result;
}

}  // namespace shardplan
