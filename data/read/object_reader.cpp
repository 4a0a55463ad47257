// The typed getters over one JSON object, and the words of their messages.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "data/read/json_message.h"
#include "data/read/json_reader.h"

namespace shardplan {

namespace {

std::string integer_range(std::int64_t low, std::int64_t high) {
  if (high == std::numeric_limits<std::int64_t>::max()) {
    return "an integer >= " + std::to_string(low);
  }
  return low == high ? std::to_string(low)
                     : "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

// Optimal string alignment: insert, delete, replace, or swap two neighbours, one step each.
std::int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::int64_t> before(b.size() + 1);  // row i - 2
  std::vector<std::int64_t> last(b.size() + 1);    // row i - 1
  std::vector<std::int64_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) { row[j] = static_cast<std::int64_t>(j); }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::int64_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

ObjectReader::ObjectReader(const JsonValue& object, std::string file)
    : object_(object), file_(std::move(file)), taken_(object.members.size()) {
  if (object.kind != JsonKind::kObject) {
    throw error("", "found " + describe(object) + ", expected an object");
  }
}

bool ObjectReader::has(std::string_view key) const {
  return find(key) != nullptr;
}

bool ObjectReader::is_null(std::string_view key) const {
  const JsonValue* member = find(key);
  return member != nullptr && member->kind == JsonKind::kNull;
}

std::int64_t ObjectReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const JsonValue* member = take(key);
  if (member == nullptr || member->kind != JsonKind::kInteger || member->integer < low ||
      member->integer > high) {
    throw unlike(key, integer_range(low, high));
  }
  return member->integer;
}

double ObjectReader::number(std::string_view key, double low, double high) {
  const JsonValue* member = take(key);
  const bool is_number =
      member != nullptr && (member->kind == JsonKind::kInteger || member->kind == JsonKind::kReal);
  if (!is_number || member->real < low || member->real > high) {
    throw unlike(key, "a number from " + exact_text(low) + " to " + exact_text(high));
  }
  return member->real;
}

bool ObjectReader::boolean(std::string_view key) {
  const JsonValue* member = take(key);
  if (member == nullptr || member->kind != JsonKind::kBool) {
    throw unlike(key, "true or false");
  }
  return member->boolean;
}

std::string ObjectReader::string(std::string_view key) {
  const JsonValue* member = take(key);
  if (member == nullptr || member->kind != JsonKind::kString) {
    throw unlike(key, "a string");
  }
  return member->string;
}

const JsonValue& ObjectReader::value(std::string_view key) {
  const JsonValue* member = take(key);
  if (member == nullptr) {
    throw unlike(key, "a value");
  }
  return *member;
}

std::vector<std::string> ObjectReader::strings(std::string_view key) {
  const JsonValue* member = take(key);
  if (member == nullptr || member->kind != JsonKind::kArray) {
    throw unlike(key, "an array of strings");
  }
  std::vector<std::string> words;
  for (const JsonValue& item : member->items) {
    if (item.kind != JsonKind::kString) {
      throw InputError(place(file_, item.line, item.pointer) + "found " + describe(item) +
                       ", expected a string");
    }
    words.push_back(item.string);
  }
  return words;
}

std::int64_t ObjectReader::integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                                      std::int64_t high) {
  return absent(key) ? fallback : integer(key, low, high);
}

double ObjectReader::number_or(std::string_view key, double fallback, double low, double high) {
  return absent(key) ? fallback : number(key, low, high);
}

bool ObjectReader::boolean_or(std::string_view key, bool fallback) {
  return absent(key) ? fallback : boolean(key);
}

std::string ObjectReader::string_or(std::string_view key, std::string fallback) {
  return absent(key) ? std::move(fallback) : string(key);
}

void ObjectReader::ignore(std::string_view key) {
  take(key);
}

std::vector<std::string> ObjectReader::remaining() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < object_.members.size(); ++i) {
    if (!taken_[i]) {
      names.push_back(object_.members[i].name);
    }
  }
  return names;
}

void ObjectReader::ignore_unset() {
  for (const std::string& key : remaining()) {
    const JsonValue& value = *find(key);
    const bool is_unset =
        value.kind == JsonKind::kNull || (value.kind == JsonKind::kBool && !value.boolean);
    if (is_unset && nearest_name(key, known_).empty()) {
      ignore(key);
    }
  }
}

std::vector<InputError> ObjectReader::unknown() const {
  std::vector<InputError> errors;
  for (const std::string& key : remaining()) {
    const std::string nearest = nearest_name(key, known_);
    const std::string hint = nearest.empty() ? "" : " (did you mean \"" + nearest + "\"?)";
    errors.push_back(error(key, "found an unknown key, expected a known one" + hint));
  }
  return errors;
}

void ObjectReader::finish() const {
  const std::vector<InputError> errors = unknown();
  if (!errors.empty()) {
    throw errors.front();
  }
}

InputError ObjectReader::error(std::string_view key, const std::string& found_expected) const {
  const JsonValue* member = key.empty() ? nullptr : find(key);
  const std::int64_t line = member == nullptr ? object_.line : member->line;
  const std::string pointer = key.empty() ? object_.pointer : child_pointer(object_.pointer, key);
  return InputError(place(file_, line, pointer) + found_expected);
}

const JsonValue* ObjectReader::find(std::string_view key) const {
  for (const auto& [name, member] : object_.members) {
    if (name == key) {
      return &member;
    }
  }
  return nullptr;
}

const JsonValue* ObjectReader::take(std::string_view key) {
  known_.emplace_back(key);
  for (std::size_t i = 0; i < object_.members.size(); ++i) {
    if (object_.members[i].name == key) {
      taken_[i] = true;
      return &object_.members[i].value;
    }
  }
  return nullptr;
}

bool ObjectReader::absent(std::string_view key) {
  const JsonValue* member = take(key);
  return member == nullptr || member->kind == JsonKind::kNull;
}

InputError ObjectReader::unlike(std::string_view key, const std::string& expected) const {
  const JsonValue* member = find(key);
  return error(key, "found " + (member == nullptr ? "nothing" : describe(*member)) + ", expected " +
                        expected);
}

std::string describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    case JsonKind::kInteger: return "integer " + std::to_string(value.integer);
    case JsonKind::kReal: return "number " + exact_text(value.real);
    case JsonKind::kString: return "string \"" + shown(value.string, Encoding::kUtf8) + "\"";
    case JsonKind::kArray: return "an array of " + std::to_string(value.items.size());
    case JsonKind::kObject: return "an object of " + std::to_string(value.members.size());
  }
  throw std::logic_error("describe: unknown kind");
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  const std::int64_t limit = word.size() > 8 ? 3 : 2;
  const auto length = static_cast<std::int64_t>(word.size());
  std::string nearest;
  std::int64_t nearest_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    const auto candidate_length = static_cast<std::int64_t>(candidate.size());
    if (std::abs(candidate_length - length) > limit) {
      continue;
    }
    const std::int64_t distance = edit_distance(word, candidate);
    // A word with no letter in common is no suggestion.
    if (distance < nearest_distance && distance < std::max(length, candidate_length)) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

}  // namespace shardplan
