#include "data/read/case_tuning.h"

#include <algorithm>
#include <ranges>

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
  const std::string targets = text_of_targets(adapters);
  std::string text = "rank " + std::to_string(adapters.rank) + " on " +
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
                   .append(quantized.is_double ? ", scales quantized" : "");
}

Adapters read_adapters(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  Adapters adapters;
  adapters.rank = reader.integer("rank", 1, kMaxRank);
  set_targets(adapters, read_targets(reader));
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
  reader.finish();
  return quantized;
}

}  // namespace shardplan
