#include "tools/export/config_file.h"

#include <array>
#include <cstdio>

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

std::string value_text(const JsonValue& value, const std::string& indent) {
  switch (value.kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    case JsonKind::kInteger: return std::to_string(value.integer);
    case JsonKind::kReal: return exact_text(value.real);
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

}  // namespace

std::string config_text(const JsonValue& config) {
  return value_text(config, "") + "\n";
}

}  // namespace shardplan
