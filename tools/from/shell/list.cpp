#include "tools/from/shell/list.h"

#include <charconv>
#include <limits>

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

std::optional<std::int64_t> number_of(const std::string& key) {
  std::int64_t number = 0;
  const char* const end = key.data() + key.size();
  const std::from_chars_result read = std::from_chars(key.data(), end, number);
  return read.ec == std::errc{} && read.ptr == end ? std::optional(number) : std::nullopt;
}

// Of the entry among the list's values; their number or more if there is none.
std::size_t place_of(const ShellValues& values, const std::string& name, const std::string& key) {
  const auto keys = values.find(keys_of(name));
  if (keys != values.end()) {
    return static_cast<std::size_t>(std::ranges::find(keys->second, key) - keys->second.begin());
  }
  const std::optional<std::int64_t> number = number_of(key);
  return number && *number >= 0 ? static_cast<std::size_t>(*number) : std::string::npos;
}

Words& written_keys(ShellValues& values, const std::string& name) {
  const auto [keys, is_new] = values.insert({keys_of(name), {}});
  for (std::size_t i = 0; is_new && i < values[name].size(); ++i) {
    keys->second.push_back(std::to_string(i));
  }
  return keys->second;
}

}  // namespace

std::string list_of(const std::string& name) {
  return name.substr(0, name.find('['));
}

std::string keys_of(const std::string& name) {
  return "!" + name;
}

std::string key_behind(std::int64_t number) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return std::to_string(number < kMost ? number + 1 : kMost);
}

std::string next_list_key(const ShellValues& values, const std::string& name) {
  const auto keys = values.find(keys_of(name));
  const auto list = values.find(name);
  if (keys != values.end() && !keys->second.empty()) {
    return key_behind(number_of(keys->second.back()).value_or(-1));
  }
  return std::to_string(list == values.end() ? 0 : list->second.size());
}

std::optional<std::string> list_key(const ShellWordContext& context, const std::string& name,
                                    const std::string& index) {
  const KnownWord known = known_word(index);
  if (known.unknown || !known.missing.empty()) {
    return std::nullopt;
  }
  if (context.maps.contains(name)) {
    return known.text;
  }
  std::optional<std::int64_t> number = number_of(known.text);
  number = number ? number : shell_arithmetic(known.text, context.values, context.assign);
  if (number && *number < 0) {  // from the end
    const auto list = context.values.find(name);
    if (list != context.values.end() && !has_known_size(list->second)) {
      return std::nullopt;
    }
    *number += number_of(next_list_key(context.values, name)).value_or(0);
  }
  return number && *number >= 0 ? std::optional(std::to_string(*number)) : std::nullopt;
}

const std::string* list_entry(const ShellValues& values, const std::string& name,
                              const std::string& key) {
  const auto list = values.find(name);
  const std::size_t place = place_of(values, name, key);
  if (list == values.end() || place >= list->second.size()) {
    return nullptr;
  }
  const auto entry = list->second.begin() + static_cast<std::ptrdiff_t>(place);
  return has_known_size({list->second.begin(), entry}) ? &*entry : nullptr;
}

void set_list_entry(ShellValues& values, const std::string& name, const std::string& key,
                    const std::string& value) {
  Words& list = values[name];
  const std::size_t place = place_of(values, name, key);
  if (place < list.size()) {
    list[place] = value;
    return;
  }
  if (!values.contains(keys_of(name)) && place == list.size()) {
    list.push_back(value);
    return;
  }
  Words& keys = written_keys(values, name);
  const std::optional<std::int64_t> number = number_of(key);
  const auto behind = std::ranges::find_if(
      keys, [&](const std::string& each) { return number && number_of(each) > number; });
  list.insert(list.begin() + (behind - keys.begin()), value);
  keys.insert(behind, key);
}

void erase_list_entry(ShellValues& values, const std::string& name, const std::string& key) {
  const std::size_t place = place_of(values, name, key);
  const auto list = values.find(name);
  if (list == values.end() || place >= list->second.size()) {
    return;
  }
  Words& keys = written_keys(values, name);
  keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(place));
  list->second.erase(list->second.begin() + static_cast<std::ptrdiff_t>(place));
}

}  // namespace shardplan
