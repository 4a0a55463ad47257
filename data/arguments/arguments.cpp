#include "data/arguments/arguments.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "data/read/count_word.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

std::int64_t read_num_values(const JsonValue& value, const std::string& file) {
  if (value.kind == JsonKind::kString && value.string == "+") {
    return kOneOrMore;
  }
  if (value.kind != JsonKind::kInteger || value.integer < 0 || value.integer > 3) {
    throw InputError(place(file, value.line, value.pointer) + "found " + describe(value) +
                     R"(, expected 0 to 3 values or "+")");
  }
  return value.integer;
}

// {"--flag": 0} with the meaning of the group, or {"--flag": {"values": 0, "meaning": "..."}}.
ArgumentRow read_row(const JsonMember& member, const ArgumentRow& group, const std::string& file) {
  ArgumentRow row = group;
  row.name = member.name;
  if (member.value.kind != JsonKind::kObject) {
    row.num_values = read_num_values(member.value, file);
    return row;
  }
  ObjectReader reader(member.value, file);
  row.num_values = read_num_values(reader.value("values"), file);
  row.meaning = reader.string("meaning");
  reader.finish();
  return row;
}

void read_group(const JsonValue& value, const std::string& file, std::vector<ArgumentRow>& rows) {
  ObjectReader reader(value, file);
  ArgumentRow group;
  const std::string effect = reader.string("effect");
  const std::optional<SettingEffect> known = value_of<SettingEffect>(effect);
  if (!known) {
    throw reader.error("effect", "found \"" + effect + "\", expected a known effect");
  }
  group.effect = *known;
  group.meaning = reader.string_or("meaning", "");
  group.source = reader.string("source");
  if (reader.has("harmless")) {
    group.harmless = reader.strings("harmless");
  }
  for (const JsonMember& member : reader.value("arguments").members) {
    rows.push_back(read_row(member, group, file));
  }
  reader.finish();
}

std::string spaced(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) { text += (text.empty() ? "" : " ") + word; }
  return text;
}

void check_num_values(const Setting& setting, const ArgumentRow& row) {
  const std::int64_t found = static_cast<std::int64_t>(setting.values.size());
  const bool fits = row.num_values == kOneOrMore ? found >= 1 : found == row.num_values;
  if (fits) {
    return;
  }
  const std::string expected = row.num_values == 0            ? "no value"
                               : row.num_values == kOneOrMore ? "one or more values"
                               : row.num_values == 1          ? "one value"
                                                     : std::to_string(row.num_values) + " values";
  throw InputError(setting.place + "found " +
                   (found == 0 ? "no value"
                               : std::to_string(found) + " values, \"" +
                                     shown(spaced(setting.values), Encoding::kUnchecked) + "\"") +
                   ", expected " + expected);
}

std::optional<std::int64_t> integer_of(const std::string& word) {
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const std::from_chars_result read = std::from_chars(word.data(), end, value);
  return read.ec == std::errc{} && read.ptr == end ? std::optional(value) : std::nullopt;
}

bool is_variable(const std::string& word) {
  return word.size() > 1 && word.front() == '$' &&
         std::ranges::all_of(word.substr(1), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '_';
         });
}

// Takes "$EXTRA" from behind as many values as the argument has: of more of them, as for a shell.
std::vector<std::string> take_unset(Setting& setting, const ArgumentRow* row) {
  std::vector<std::string> unset;
  while (row != nullptr && row->num_values != kOneOrMore &&
         static_cast<std::int64_t>(setting.values.size()) > row->num_values &&
         is_variable(setting.values.back())) {
    unset.insert(unset.begin(), setting.values.back());
    setting.values.pop_back();
  }
  return unset;
}

SettingUse use_of(const Setting& setting, const ArgumentTable& table) {
  SettingUse use;
  use.name = setting.name;
  use.value = spaced(setting.values);
  const ArgumentRow* row = find_row(table, setting.name);
  if (row == nullptr) {
    use.meaning = "in no table of " + table.version;
    return use;
  }
  check_num_values(setting, *row);
  use.effect = row->effect;
  use.meaning = row->meaning;
  if (row->effect == SettingEffect::kRefused &&
      std::ranges::find(row->harmless, use.value) != row->harmless.end()) {
    use.effect = SettingEffect::kNone;
  }
  return use;
}

}  // namespace

ArgumentTable argument_table(const Library& library, const std::string& name) {
  const JsonFile& source = library.parse("arguments/" + name + ".json");
  ObjectReader reader(source.json, source.file);
  ArgumentTable table;
  reader.string("framework");
  table.version = reader.string("version");
  for (const JsonValue& group : reader.value("groups").items) {
    read_group(group, source.file, table.rows);
  }
  if (reader.has("with")) {  // rows of another file, which several frameworks share
    for (const std::string& other : reader.strings("with")) {
      const ArgumentTable shared = argument_table(library, other);
      table.rows.insert(table.rows.end(), shared.rows.begin(), shared.rows.end());
    }
  }
  reader.finish();
  std::ranges::sort(table.rows, {}, &ArgumentRow::name);
  const auto twice = std::ranges::adjacent_find(table.rows, {}, &ArgumentRow::name);
  if (twice != table.rows.end()) {
    throw InputError(source.file + ": found \"" + twice->name + "\" twice, expected it once");
  }
  return table;
}

const ArgumentRow* find_row(const ArgumentTable& table, std::string_view name) {
  const auto found = std::ranges::lower_bound(table.rows, name, {}, &ArgumentRow::name);
  if (found != table.rows.end() && found->name == name) {
    return &*found;
  }
  for (const ArgumentRow& row : table.rows) {
    if (row.name.ends_with('*') && name.starts_with(row.name.substr(0, row.name.size() - 1))) {
      return &row;
    }
  }
  return nullptr;
}

RunArguments::RunArguments(std::string file, std::vector<Setting> settings,
                           const ArgumentTable& table)
    : file_(std::move(file)), settings_(std::move(settings)) {
  for (Setting& setting : settings_) {
    const std::vector<std::string> unset = take_unset(setting, find_row(table, setting.name));
    uses_.push_back(use_of(setting, table));
    for (const std::string& name : unset) {
      uses_.push_back({.name = name,
                       .value = "",
                       .effect = SettingEffect::kUnknown,
                       .meaning = "a variable that nothing in the file sets: taken as empty"});
    }
  }
}

const Setting* RunArguments::find(std::string_view name) const {
  const auto found = std::ranges::find(settings_.rbegin(), settings_.rend(), name, &Setting::name);
  return found == settings_.rend() ? nullptr : &*found;
}

bool RunArguments::has(std::string_view name) const {
  return find(name) != nullptr;
}

std::string RunArguments::place(std::string_view name) const {
  const Setting* setting = find(name);
  return setting == nullptr ? file_ + ": " + std::string(name) + ": " : setting->place;
}

InputError RunArguments::error(std::string_view name, const std::string& found_expected) const {
  return InputError(place(name) + found_expected);
}

std::optional<std::int64_t> RunArguments::integer(std::string_view name, std::int64_t low,
                                                  std::int64_t high) const {
  const Setting* setting = find(name);
  if (setting == nullptr) {
    return std::nullopt;
  }
  const std::string& word = setting->values.front();
  std::optional<std::int64_t> value = integer_of(word);
  if (!value && setting->is_option) {
    value = count_of(word);
  }
  if (!value || *value < low || *value > high) {
    throw error(name, "found \"" + shown(word, Encoding::kUnchecked) +
                          "\", expected an integer from " + std::to_string(low) + " to " +
                          std::to_string(high));
  }
  return value;
}

std::int64_t RunArguments::integer_or(std::string_view name, std::int64_t fallback,
                                      std::int64_t low, std::int64_t high) const {
  return integer(name, low, high).value_or(fallback);
}

std::int64_t RunArguments::required_integer(std::string_view name, std::int64_t low,
                                            std::int64_t high) const {
  const std::optional<std::int64_t> value = integer(name, low, high);
  if (!value) {
    throw error(name, "found nothing, expected an integer");
  }
  return *value;
}

double RunArguments::number_or(std::string_view name, double fallback, double low,
                               double high) const {
  const Setting* setting = find(name);
  if (setting == nullptr) {
    return fallback;
  }
  const std::string& word = setting->values.front();
  double value = 0;
  const char* end = word.data() + word.size();
  const std::from_chars_result read = std::from_chars(word.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end || !(value >= low && value <= high)) {
    throw error(name, "found \"" + shown(word, Encoding::kUnchecked) +
                          "\", expected a number from " + exact_text(low) + " to " +
                          exact_text(high));
  }
  return value;
}

std::string RunArguments::text_or(std::string_view name, std::string_view fallback) const {
  const Setting* setting = find(name);
  return setting == nullptr ? std::string(fallback) : setting->values.front();
}

std::vector<std::string> RunArguments::texts(std::string_view name) const {
  const Setting* setting = find(name);
  return setting == nullptr ? std::vector<std::string>{} : setting->values;
}

std::string RunArguments::word_or(std::string_view name, std::string_view fallback,
                                  const std::vector<std::string>& words) const {
  std::string word = text_or(name, fallback);
  if (std::ranges::find(words, word) == words.end()) {
    throw error(name, "found \"" + shown(word, Encoding::kUnchecked) + "\", expected one of " +
                          joined(words) + suggestion(word, words));
  }
  return word;
}

void RunArguments::excuse(std::string_view name, const std::string& reason) {
  for (SettingUse& use : uses_) {
    if (use.name == name && use.effect == SettingEffect::kRefused) {
      use.effect = SettingEffect::kNone;
      use.meaning = reason;
    }
  }
}

std::string RunArguments::first_refused() const {
  for (const SettingUse& use : uses_) {
    if (use.effect == SettingEffect::kRefused) {
      return "unsupported: " + use.name + (use.value.empty() ? "" : " " + use.value) + ": " +
             use.meaning;
    }
  }
  return "";
}

}  // namespace shardplan
