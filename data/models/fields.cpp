#include "data/models/fields.h"

#include <algorithm>
#include <stdexcept>

#include "data/read/count_word.h"

namespace shardplan {
namespace {

constexpr const char* kText = "text_config";  // of a model of text and images
constexpr const char* kLayers = "num_hidden_layers";

JsonValue* member_of(JsonValue& object, const std::string& key) {
  const auto found = std::ranges::find(object.members, key, &JsonMember::name);
  return found == object.members.end() ? nullptr : &found->value;
}

// The object that has the key; of both the text, which is what trains.
JsonValue* object_with(JsonValue& config, const std::string& key) {
  JsonValue* text = member_of(config, kText);
  if (text != nullptr && member_of(*text, key) != nullptr) {
    return text;
  }
  return member_of(config, key) != nullptr ? &config : nullptr;
}

void cut_lists_of_layers(JsonValue& object, std::int64_t before, std::int64_t after) {
  for (JsonMember& member : object.members) {
    std::vector<JsonValue>& items = member.value.items;
    if (std::ssize(items) == before && after < before && after > 0) {
      items.resize(static_cast<std::size_t>(after));
    }
  }
}

}  // namespace

std::vector<std::string> model_field_names(const JsonValue& config) {
  std::vector<std::string> names;
  for (const JsonMember& member : config.members) {
    names.push_back(member.name);
    if (member.name == kText) {
      for (const JsonMember& of_text : member.value.members) { names.push_back(of_text.name); }
    }
  }
  return names;
}

void set_model_field(JsonValue& config, const std::string& key, const std::string& word,
                     const std::string& place) {
  JsonValue* object = object_with(config, key);
  if (object == nullptr) {
    throw std::logic_error("set_model_field: no key " + key);
  }
  JsonValue& value = *member_of(*object, key);
  const JsonValue before = value;
  if (before.kind == JsonKind::kString) {
    value.string = word;
    return;
  }
  const std::optional<std::int64_t> count = count_of(word);
  value = parse_json(count ? std::to_string(*count) : word, place);
  value.pointer = before.pointer;
  value.line = before.line;
  if (key == kLayers && value.kind == JsonKind::kInteger) {
    cut_lists_of_layers(*object, before.integer, value.integer);
  }
}

}  // namespace shardplan
