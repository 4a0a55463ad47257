#include "data/read/case_tuning.h"

#include <algorithm>
#include <ranges>
#include <regex>
#include <utility>

#include "data/read/case_members.h"

namespace shardplan {
namespace {

const std::vector<std::string>& layer_names() {
  static const std::vector<std::string> names(kLinearLayerNames.begin(), kLinearLayerNames.end());
  return names;
}

Targets read_targets(ObjectReader& reader) {
  if (!is_given(reader, "targets")) {
    reader.ignore("targets");
    return all_targets();
  }
  const JsonValue& value = reader.value("targets");
  const std::optional<Targets> shorthand =
      value.kind == JsonKind::kString ? targets_of_word(value.string) : std::nullopt;
  if (shorthand) {
    return *shorthand;
  }
  if (value.kind != JsonKind::kArray || value.items.empty()) {
    throw reader.error("targets", "found " + describe(value) +
                                      ", expected \"all\", \"all-linear\" or an array of some of " +
                                      joined(layer_names()));
  }
  Targets targets = targets_named(reader.strings("targets"));
  if (!targets.wrong.empty()) {
    throw reader.error("targets", "found \"" + shown(targets.wrong, Encoding::kUtf8) +
                                      "\", expected \"all\", \"all-linear\" or some of " +
                                      joined(layer_names()) +
                                      suggestion(targets.wrong, layer_names()));
  }
  return targets;
}

}  // namespace

std::optional<LinearLayer> linear_layer_named(std::string_view name) {
  const auto* const found = std::ranges::find(kLinearLayerNames, name);
  return found == kLinearLayerNames.end()
             ? std::nullopt
             : std::optional(static_cast<LinearLayer>(found - kLinearLayerNames.begin()));
}

std::optional<Quantization> quantization_named(std::string_view name) {
  const auto* const found = std::ranges::find(kQuantizationNames, name);
  return found == kQuantizationNames.end()
             ? std::nullopt
             : std::optional(static_cast<Quantization>(found - kQuantizationNames.begin()));
}

Targets all_targets() {
  Targets targets;
  targets.on.fill(true);
  return targets;
}

Targets all_linear_targets() {
  Targets targets = all_targets();
  targets.experts = ExpertTargets::kAllLinear;
  return targets;
}

std::optional<Targets> targets_of_word(std::string_view word) {
  return word == "all"          ? std::optional(all_targets())
         : word == "all-linear" ? std::optional(all_linear_targets())
                                : std::nullopt;
}

void set_targets(Adapters& adapters, const Targets& targets) {
  adapters.targets = targets.on;
  adapters.expert_targets = targets.experts;
}

Targets targets_named(const std::vector<std::string>& names) {
  Targets targets;
  for (const std::string& name : names) {
    const std::optional<LinearLayer> layer = linear_layer_named(name);
    if (layer) {
      using enum LinearLayer;
      targets.on.at(static_cast<std::size_t>(*layer)) = true;
      if (*layer == kGate || *layer == kUp || *layer == kDown) {
        targets.experts = ExpertTargets::kFfnNames;
      }
    } else if (targets.wrong.empty()) {
      targets.wrong = name;
    }
  }
  return targets;
}

std::string text_of_targets(const Adapters& adapters) {
  switch (adapters.expert_targets) {
    case ExpertTargets::kAllLinear: return "all-linear";
    case ExpertTargets::kNone:
      if (std::ranges::all_of(adapters.targets, [](bool on) { return on; })) {
        return "all";
      }
      break;
    case ExpertTargets::kFfnNames: break;
  }
  std::string text;
  for (std::size_t i = 0; i < adapters.targets.size(); ++i) {
    if (adapters.targets.at(i)) {
      text.append(text.empty() ? "" : ",").append(kLinearLayerNames.at(i));
    }
  }
  return text;
}

std::string text_of(const Adapters& adapters) {
  if (adapters.rank == 0) {
    return "";
  }
  if (adapters.kind == AdapterKind::kBottleneck) {
    return "bottlenecks of " + std::to_string(adapters.rank) + " behind every FFN, of " +
           std::string(name_of(adapters.dtype));
  }
  const std::string targets = text_of_targets(adapters);
  const std::string_view size = adapters.kind == AdapterKind::kOft       ? "rotations in blocks of "
                                : adapters.kind == AdapterKind::kAdaLora ? "AdaLoRA of rank "
                                                                         : "rank ";
  std::string text = std::string(size) + std::to_string(adapters.rank) + " on " +
                     (targets == "all" ? "all linear layers" : targets);
  if (adapters.dropout > 0) {
    text += ", dropout " + exact_text(adapters.dropout);
  }
  text += adapters.decomposes_weights ? ", DoRA" : "";
  text += adapters.trains_table ? ", embedding trained" : "";
  text += adapters.trains_head ? ", head trained" : "";
  return text + ", of " + std::string(name_of(adapters.dtype));
}

std::string text_of(const QuantizedWeights& quantized) {
  return quantized.kind == Quantization::kNone
             ? ""
             : std::string(name_of(quantized.kind))
                   .append(quantized.is_double ? ", scales quantized" : "")
                   .append(quantized.takes_head ? ", head, too" : "")
                   .append(spared_names(quantized).empty()
                               ? ""
                               : ", but " + joined(spared_names(quantized)));
}

std::vector<std::string> spared_names(const QuantizedWeights& quantized) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < quantized.spared.size(); ++i) {
    if (quantized.spared.at(i)) {
      names.emplace_back(kLinearLayerNames.at(i));
    }
  }
  return names;
}

namespace {

AdapterKind read_kind(ObjectReader& reader) {
  const std::string kind = reader.string_or("kind", std::string(name_of(AdapterKind::kLora)));
  const auto* const found = std::ranges::find(kAdapterKindNames, kind);
  if (found == kAdapterKindNames.end()) {
    throw reader.error(
        "kind",
        "found \"" + shown(kind, Encoding::kUtf8) +
            "\", expected lora, oft, adalora or bottleneck; oft's rank is the size of a block, "
            "a bottleneck's its width");
  }
  return static_cast<AdapterKind>(found - kAdapterKindNames.begin());
}

}  // namespace

Adapters read_adapters(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  Adapters adapters;
  adapters.kind = read_kind(reader);
  adapters.rank = reader.integer("rank", 1, kMaxRank);
  set_targets(adapters, read_targets(reader));
  const std::vector<std::string> words(kTowerTargetNames.begin(), kTowerTargetNames.end());
  const std::string tower = reader.string_or("tower", words.front());
  const auto place = std::ranges::find(words, tower);
  if (place == words.end()) {
    throw reader.error("tower", "found \"" + shown(tower, Encoding::kUtf8) +
                                    "\", expected one of " + joined(words));
  }
  adapters.tower_targets = static_cast<TowerTargets>(place - words.begin());
  adapters.dropout = reader.number_or("dropout", 0, 0, 1);
  adapters.decomposes_weights = reader.boolean_or("dora", false);
  adapters.trains_table = reader.boolean_or("trains_table", false);
  adapters.trains_head = reader.boolean_or("trains_head", false);
  const std::string dtype = reader.string_or("dtype", std::string(name_of(adapters.dtype)));
  const std::optional<DType> known = dtype_named(dtype);
  if (!known || (*known != DType::kFp32 && *known != DType::kBf16 && *known != DType::kFp16)) {
    throw reader.error(
        "dtype", "found \"" + shown(dtype, Encoding::kUtf8) + "\", expected fp32, bf16 or fp16");
  }
  adapters.dtype = *known;
  reader.finish();
  return adapters;
}

QuantizedWeights read_quantization(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  QuantizedWeights quantized;
  const std::string kind = reader.string("kind");
  const std::optional<Quantization> known = quantization_named(kind);
  if (!known || *known == Quantization::kNone) {
    throw reader.error("kind",
                       "found \"" + shown(kind, Encoding::kUtf8) + "\", expected nf4, fp4 or int8");
  }
  quantized.kind = *known;
  quantized.is_double = reader.boolean_or("double", false);
  if (quantized.is_double && quantized.kind == Quantization::kInt8) {
    throw reader.error("double",
                       "found true with int8, expected nf4 or fp4, whose scales it is of");
  }
  quantized.takes_head = reader.boolean_or("head", false);
  if (is_given(reader, "spared")) {
    const Targets spared = targets_named(reader.strings("spared"));
    if (!spared.wrong.empty()) {
      throw reader.error("spared", "found \"" + shown(spared.wrong, Encoding::kUtf8) +
                                       "\", expected some of " + joined(layer_names()) +
                                       suggestion(spared.wrong, layer_names()));
    }
    quantized.spared = spared.on;
  }
  reader.ignore("spared");
  reader.finish();
  return quantized;
}

std::string why_no_pattern(const std::string& pattern) {
  try {
    const std::regex compiled(pattern);
  } catch (const std::regex_error& error) { return error.what(); }
  return "";
}

std::vector<NameRule> train_only(const std::string& pattern) {
  return {{.pattern = "", .trains = false}, {.pattern = pattern, .trains = true}};
}

std::vector<NameRule> read_name_rules(const JsonValue& value, const std::string& file) {
  std::vector<NameRule> rules;
  if (value.kind != JsonKind::kArray) {
    throw InputError(file + ":" + std::to_string(value.line) + ": " + value.pointer + ": found " +
                     describe(value) + ", expected an array of {\"pattern\", \"trains\"}");
  }
  for (const JsonValue& item : value.items) {
    ObjectReader reader(item, file);
    NameRule rule{.pattern = reader.string("pattern"), .trains = reader.boolean("trains")};
    reader.finish();
    if (!why_no_pattern(rule.pattern).empty()) {
      throw reader.error("pattern", "found \"" + shown(rule.pattern, Encoding::kUtf8) +
                                        "\", expected a regular expression");
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

std::string text_of(const std::vector<NameRule>& rules) {
  std::string text;
  for (const NameRule& rule : rules) {
    text += text.empty() ? "" : ", then ";
    text += rule.trains ? "trained: " : "frozen: ";
    text += rule.pattern.empty() ? "all" : rule.pattern;
  }
  return text;
}

}  // namespace shardplan
