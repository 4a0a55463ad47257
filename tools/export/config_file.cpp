#include "tools/export/config_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "data/read/json_message.h"

namespace shardplan {
namespace {

std::string string_text(const std::string& word) {
  std::string text = "\"";
  for (const char letter : word) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      text += '\\';
      text += letter;
    } else if (code < 0x20) {
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", code);
      text += escaped.data();
    } else {
      text += letter;
    }
  }
  return text + "\"";
}

// With a point, as transformers 5.17 takes no integer where a configuration has a float.
std::string real_text(double number) {
  const std::string text = exact_text(number);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string value_text(const JsonValue& value, const std::string& indent) {
  switch (value.kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    case JsonKind::kInteger: return std::to_string(value.integer);
    case JsonKind::kReal: return real_text(value.real);
    case JsonKind::kString: return string_text(value.string);
    case JsonKind::kArray: {
      std::string text = "[";
      for (const JsonValue& item : value.items) {
        text += (text.size() > 1 ? ", " : "") + value_text(item, indent);
      }
      return text + "]";
    }
    case JsonKind::kObject: {
      const std::string inner = indent + "  ";
      std::string text = "{";
      for (const JsonMember& member : value.members) {
        text += (text.size() > 1 ? ",\n" : "\n") + inner + string_text(member.name) + ": " +
                value_text(member.value, inner);
      }
      return text + "\n" + indent + "}";
    }
  }
  return "";
}

const JsonValue* member_of(const JsonValue& object, std::string_view name) {
  const auto found = std::ranges::find(object.members, name, &JsonMember::name);
  return found == object.members.end() ? nullptr : &found->value;
}

// transformers 5.17 models/exaone4/configuration_exaone4.py, Exaone4Config: without a window it
// divides by a pattern of zero layers, unless the layers' types are there.
void add_layer_types(JsonValue& config) {
  const JsonValue* const type = member_of(config, "model_type");
  const JsonValue* const window = member_of(config, "sliding_window");
  const JsonValue* const layers = member_of(config, "num_hidden_layers");
  const bool lacks_types = type != nullptr && type->string == "exaone4" && window != nullptr &&
                           window->kind == JsonKind::kNull && layers != nullptr &&
                           member_of(config, "layer_types") == nullptr;
  if (!lacks_types) {
    return;
  }
  JsonValue full;
  full.kind = JsonKind::kString;
  full.string = "full_attention";
  JsonValue types;
  types.kind = JsonKind::kArray;
  types.items.assign(static_cast<std::size_t>(layers->integer), full);
  config.members.push_back({.name = "layer_types", .value = std::move(types)});
}

}  // namespace

std::string config_text(JsonValue config) {
  add_layer_types(config);
  return value_text(config, "") + "\n";
}

}  // namespace shardplan
