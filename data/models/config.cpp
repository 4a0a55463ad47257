#include "data/models/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "data/models/attention.h"
#include "data/models/config_keys.h"
#include "data/models/family.h"
#include "data/models/towers.h"
#include "data/models/wrappers.h"
#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 27;

// So that bytes, some tens of times as many, stay exact in 64 bits.
constexpr double kMaxParameters = 1125899906842624.0;  // 2^50

enum class Standing { kWhole, kTextConfig };  // is the object the file, or its text_config?

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) { names.emplace_back(family.model_type); }
  for (const Wrapper& wrapper : wrappers()) { names.emplace_back(wrapper.model_type); }
  std::ranges::sort(names);
  return names;
}

InputError unknown_model_type(const ObjectReader& fields, const std::string& found) {
  const std::vector<std::string> names = known_model_types();
  const std::string nearest = nearest_name(found, names);
  const std::string hint = nearest.empty() ? "" : " (did you mean \"" + nearest + "\"?)";
  return fields.error("model_type", "found " + (found.empty() ? "nothing" : found) +
                                        ", expected one of " + std::to_string(names.size()) +
                                        " types of decoders, such as llama, qwen3 or gpt_oss" +
                                        hint);
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
  for (const Wrapper& wrapper : wrappers()) {
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
std::int64_t size(ConfigReading& reading, Standing standing, std::string_view usual,
                  std::int64_t of_class, std::int64_t high) {
  const std::string_view key = reading.named(usual);
  return standing == Standing::kTextConfig ? reading.fields.integer_or(key, of_class, 1, high)
                                           : reading.fields.integer(key, 1, high);
}

std::int64_t count_layers(ConfigReading& reading, Standing standing) {
  if (reading.family.count_layers == nullptr) {
    return size(reading, standing, "num_hidden_layers", reading.family.num_layers, kMaxLayers);
  }
  reading.fields.ignore("num_hidden_layers");
  const std::int64_t counted = reading.family.count_layers(reading);
  if (counted < 1 || counted > kMaxLayers) {
    throw reading.fields.error("", "found " + std::to_string(counted) +
                                       " layers, expected at least 1 and at most " +
                                       std::to_string(kMaxLayers));
  }
  return counted;
}

void read_sizes(ConfigReading& reading, Standing standing) {
  const ModelFamily& family = reading.family;
  ModelSpec& model = reading.model;
  model.hidden = size(reading, standing, "hidden_size", family.hidden, kMaxHidden);
  if (!family.needs_no_ffn) {
    model.ffn = size(reading, standing, "intermediate_size", family.ffn, kMaxFfn);
  }
  model.vocab = size(reading, standing, "vocab_size", family.vocab, kMaxVocab);
  model.num_heads = size(reading, standing, "num_attention_heads", family.num_heads, kMaxHeads);
  model.layers.resize(static_cast<std::size_t>(count_layers(reading, standing)));
  const std::int64_t positions =
      reading.fields.integer_or(reading.named("max_position_embeddings"), 0, 1, kMaxSequence);
  const bool are_scaled =
      scales_positions(reading, "rope_scaling") || scales_positions(reading, "rope_parameters");
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
  if (is_given(reading, "per_layer_config") && !reading.family.reads_layer_config &&
      !fields.value("per_layer_config").members.empty()) {
    throw fields.error("per_layer_config",
                       "found " + describe(fields.value("per_layer_config")) +
                           ", expected none: overrides by layer are not supported");
  }
  fields.ignore("per_layer_config");
}

// In floating point, before anyone adds up integers.
double counted_parameters(const ModelSpec& model) {
  double parameters = 0;
  const auto add = [&parameters](const ParameterTensors& tensors, double copies) {
    for (const ParameterTensor& tensor : tensors) {
      parameters += copies * static_cast<double>(tensor.elements);
    }
  };
  const ParameterKinds kinds = parameter_kinds(model);
  for (std::size_t kind = 0; kind < kinds.kinds.size(); ++kind) {
    add(layer_parameters(model, kinds.kinds[kind]),
        static_cast<double>(std::ranges::count(kinds.of_layer, kind)));
  }
  add(mtp_parameters(model), static_cast<double>(model.num_mtp_layers));
  add(embedding_parameters(model), 1);
  add(head_parameters(model), 1);
  return parameters;
}

void check_parameters(const ConfigReading& reading) {
  const double parameters = counted_parameters(reading.model);
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

// partial_rotary_factor stands at the top or, in files of transformers 5, among rope_parameters.
double rotary_share(ConfigReading& reading) {
  const std::string_view key = "partial_rotary_factor";
  ObjectReader& fields = reading.fields;
  const bool is_at_top = is_given(reading, key);
  for (const std::string_view parameters : {"rope_parameters", "rope_scaling"}) {
    if (is_at_top || !is_given(reading, parameters) ||
        fields.value(parameters).kind != JsonKind::kObject) {
      continue;
    }
    ObjectReader inner(fields.value(parameters), reading.file);
    if (inner.has(key) && !inner.is_null(key)) {
      return inner.number(key, 0, 1);
    }
  }
  return fields.number_or(key, reading.family.rotary_share, 0, 1);
}

// Shapes that all models of a family share.
void take_shape(ConfigReading& reading) {
  const ModelFamily& family = reading.family;
  ModelSpec& model = reading.model;
  model.family = family.model_type;
  model.gated_ffn = family.gated_ffn;
  model.activation = family.activation;
  model.attention_gate = family.attention_gate;
  model.norms_per_layer = family.norms_per_layer;
  model.norms_after = family.norms_after;
  model.parallel_ffn = family.parallel_ffn;
  model.layer_norm = family.layer_norm;
  model.norm_bias = family.norm_bias;
  model.norms_all_heads = family.norms_all_heads;
  model.head_bias = family.has_head_bias;
}

ConfigReading read_text_model(const JsonValue& config, const ModelFamily& family,
                              const std::string& file, Standing standing) {
  ConfigReading reading{.fields = ObjectReader(config, file),
                        .family = family,
                        .model = {},
                        .warnings = {},
                        .file = file};
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  fields.ignore("model_type");
  take_shape(reading);
  model.qk_norm = family.qk_norm || (family.qk_norm_key && fields.boolean_or("use_qk_norm", false));
  model.caps_logits = is_capped(reading, "final_logit_softcapping");
  model.caps_scores = is_capped(reading, "attn_logit_softcapping");
  read_activation(reading);
  read_sizes(reading, standing);
  read_attention(reading);
  model.rotary_share = rotary_share(reading);
  model.ffn_bias = family.ffn_bias_key.empty()
                       ? family.ffn_bias
                       : fields.boolean_or(family.ffn_bias_key, family.ffn_bias);
  for (const auto read : {family.read_experts, family.read_windows, family.read_own_parts}) {
    if (read != nullptr) {
      read(reading);
    }
  }
  model.tied_embeddings = explicit_boolean(fields, reading.named("tie_word_embeddings"))
                              .value_or(family.tied_embeddings);
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

constexpr std::string_view kTextOnly = "counts the text model only, without the vision tower";

// The text's keys stand beside the wrapper's.
ModelConfig read_flat(const JsonValue& config, const Wrapper& wrapper, const std::string& file,
                      UnknownKeys unknown_keys) {
  ConfigReading text =
      read_text_model(config, *find_family(wrapper.text_model_type), file, Standing::kWhole);
  text.warnings.insert(text.warnings.begin(), text.fields.error("", std::string(kTextOnly)).what());
  for (const std::string_view key : wrapper_keys()) { text.fields.ignore(key); }
  close_keys(text.fields, text.family.without_effect, unknown_keys, text.warnings);
  return {.model = std::move(text.model), .warnings = std::move(text.warnings)};
}

const ModelFamily& family_of_text(const Wrapper& wrapper, ObjectReader& inner) {
  const std::string type = inner.string_or("model_type", std::string(wrapper.text_model_type));
  if (type != wrapper.text_model_type && !wrapper.takes_any_text) {
    throw inner.error("model_type", "found " + type + ", expected " +
                                        std::string(wrapper.text_model_type) + " within " +
                                        std::string(wrapper.model_type));
  }
  const ModelFamily* family = find_family(type);
  if (family == nullptr) {
    throw unknown_model_type(inner, type);
  }
  return *family;
}

ModelConfig read_wrapped(const JsonValue& config, const Wrapper& wrapper, const std::string& file,
                         UnknownKeys unknown_keys) {
  ObjectReader top(config, file);
  top.ignore("model_type");
  const std::string_view key = wrapper.text_key;
  if (!top.has(key) && wrapper.may_be_flat) {
    return read_flat(config, wrapper, file, unknown_keys);
  }
  if (!top.has(key)) {
    throw top.error(key,
                    "found nothing, expected the text model (a file of a text model "
                    "alone has model_type " +
                        std::string(wrapper.text_model_type) + ")");
  }
  const JsonValue& text_config = top.value(key);
  ObjectReader inner(text_config, file);
  ConfigReading text =
      read_text_model(text_config, family_of_text(wrapper, inner), file, Standing::kTextConfig);
  text.model.tower = read_tower(config, std::string(wrapper.model_type), file);
  read_outer_tie(text, top);
  text.warnings.insert(text.warnings.begin(), top.error("", std::string(kTextOnly)).what());
  ConfigReading outer{
      .fields = std::move(top), .family = text.family, .model = {}, .warnings = {}, .file = file};
  read_notes(outer);
  close_keys(outer.fields, wrapper_keys(), unknown_keys, outer.warnings);
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
