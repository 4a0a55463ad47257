// What stands behind "${": a variable, a default instead, a part of it.
#include <string_view>

#include "tools/from/shell/condition.h"
#include "tools/from/shell/expansion.h"
#include "tools/from/shell/list.h"
#include "tools/from/shell/word_reader.h"

namespace shardplan {
namespace {

bool is_empty(const std::vector<std::string>& values) {
  return std::ranges::all_of(values, [](const std::string& value) {
    const KnownWord known = known_word(value);
    return known.text.empty() && !known.unknown;
  });
}

bool begins_with_any(std::string_view text, std::initializer_list<std::string_view> forms) {
  return std::ranges::any_of(forms, [&](std::string_view form) { return text.starts_with(form); });
}

// ${NAME#pattern} and its like: the shortest or longest beginning or end that matches, cut.
std::string without_match(const std::string& value, std::string_view form,
                          const std::string& pattern) {
  const bool from_front = form.front() == '#';
  const bool longest = form.size() == 2;
  for (std::size_t i = 0; i <= value.size(); ++i) {
    const std::size_t length = longest ? value.size() - i : i;
    const std::string piece =
        from_front ? value.substr(0, length) : value.substr(value.size() - length);
    if (matches_pattern(piece, pattern)) {
      return from_front ? value.substr(length) : value.substr(0, value.size() - length);
    }
  }
  return value;
}

std::string in_case(std::string text, bool upper) {
  std::ranges::transform(text, text.begin(), [&](unsigned char letter) {
    return static_cast<char>(upper ? std::toupper(letter) : std::tolower(letter));
  });
  return text;
}

}  // namespace

// "[3]" or "[$KEY]" at the beginning of `rest`, which is taken from it: the entry's name, with its
// value among the variables.
std::string ShellWordReader::element_name(const std::string& name, std::string& rest) {
  const std::size_t end = end_of_group(rest, 1, ']');
  const std::string index = behind(rest.substr(1, end - 2));
  rest = rest.substr(end);
  const std::optional<std::string> key = list_key(context_, name, index);
  std::string element = name + "[" + key.value_or(plain(index)) + "]";
  context_.values.erase(element);
  const auto list = context_.values.find(name);
  if (list == context_.values.end()) {
    return element;
  }
  spend(list->second.size() * kStepsOfEntry);
  const std::string* const value = key ? list_entry(context_.values, name, *key) : nullptr;
  const bool is_open = !key || !has_known_size(list->second);
  if (value != nullptr) {
    context_.values[element] = {*value};
  } else if (is_open) {
    context_.values[element] = {marked(kUnknownMark, "${", element + "}")};
  }
  return element;
}

// Behind "${#": how many entries, or letters; nothing where that is not known.
std::optional<std::string> ShellWordReader::length(const std::string& name, bool list) const {
  const auto found = context_.values.find(name);
  if (found == context_.values.end()) {
    return std::nullopt;
  }
  const Words& entries = found->second;
  const bool is_open = std::ranges::any_of(entries, [](const std::string& entry) {
    return entry.find(kUnsetMark) != std::string::npos;
  });
  if (list) {
    return is_open || !has_known_size(entries) ? std::nullopt
                                               : std::optional(std::to_string(entries.size()));
  }
  const std::string value = entries.empty() ? "" : entries.front();
  return plain(value) == value ? std::optional(std::to_string(value.size())) : std::nullopt;
}

// "${!NAME[@]}"; nothing where the list's size is not known.
std::optional<ShellWordReader::Words> ShellWordReader::indices(const std::string& name) const {
  const std::optional<std::string> size = length(name, true);
  if (!size) {
    return std::nullopt;
  }
  const auto keys = context_.values.find(keys_of(name));
  if (keys != context_.values.end()) {
    return keys->second;
  }
  Words all;
  while (all.size() < context_.values.at(name).size()) {
    all.push_back(std::to_string(all.size()));
  }
  return all;
}

// "!NAME..." with the name that NAME holds; nothing where that is not known.
std::optional<std::string> ShellWordReader::referred(const std::string& inner) const {
  std::size_t end = 1;
  while (end < inner.size() && is_name_letter(inner[end])) { ++end; }
  const auto found = context_.values.find(inner.substr(1, end - 1));
  const bool is_one = found != context_.values.end() && found->second.size() == 1;
  const bool is_name = is_one && (is_shell_name(found->second.front()) ||
                                  shell_arithmetic(found->second.front(), {}).value_or(0) > 0);
  const bool lists = inner.substr(end).starts_with('[') || inner.substr(end).starts_with('*');
  return is_name && !lists ? std::optional(found->second.front() + inner.substr(end))
                           : std::nullopt;
}

// ":2" or ":2:3" of `size` letters or entries: where it begins and ends.
std::optional<std::pair<std::int64_t, std::int64_t>> ShellWordReader::range(const std::string& rest,
                                                                            std::size_t size) {
  const auto end = static_cast<std::int64_t>(size);
  const std::size_t middle = std::min(rest.find(':', 1), rest.size());
  std::optional<std::int64_t> first = inner_reader(rest.substr(1, middle - 1)).arithmetic();
  std::optional<std::int64_t> count =
      middle < rest.size() ? inner_reader(rest.substr(middle + 1)).arithmetic() : end;
  if (!first || !count) {
    return std::nullopt;
  }
  *first = std::min(*first < 0 ? *first + end : *first, end);
  if (*first < 0) {
    return std::pair<std::int64_t, std::int64_t>(0, 0);
  }
  const std::int64_t last = *count < 0 ? *count + end : *first + std::min(*count, end - *first);
  return std::pair(*first, std::max(*first, last));
}

// Cuts, replacements and cases of a value; nothing where `rest` is none of them.
std::optional<std::string> ShellWordReader::cut(const std::string& value, const std::string& rest) {
  if (plain(value) != value) {
    return std::nullopt;
  }
  if (rest.starts_with(':')) {
    const auto part = range(rest, value.size());
    return part ? std::optional(value.substr(static_cast<std::size_t>(part->first),
                                             static_cast<std::size_t>(part->second - part->first)))
                : std::nullopt;
  }
  for (const std::string_view form : {"##", "#", "%%", "%"}) {
    if (rest.starts_with(form)) {
      spend(value.size() * value.size());  // each beginning or end is a text to compare
      return without_match(value, form, pattern_behind(rest.substr(form.size())));
    }
  }
  if (rest == "^^" || rest == ",,") {
    return in_case(value, rest == "^^");
  }
  if (rest.starts_with('/')) {
    const bool all = rest.starts_with("//");
    const std::size_t begin = all ? 2 : 1;
    const std::size_t middle = std::min(rest.find('/', begin), rest.size());
    const std::string from = plain(behind(rest.substr(begin, middle - begin)));
    const std::string to = middle < rest.size() ? plain(behind(rest.substr(middle + 1))) : "";
    if (from.empty() || from.find_first_of("*?[#%") != std::string::npos) {
      return std::nullopt;
    }
    std::string replaced;
    std::size_t kept = 0;
    for (std::size_t place = value.find(from); place != std::string::npos;
         place = all ? value.find(from, kept) : std::string::npos) {
      replaced.append(value, kept, place - kept).append(to);
      check_size(replaced, "{...//}");
      kept = place + from.size();
    }
    return replaced.append(value, kept);
  }
  return std::nullopt;
}

// The same of a variable, or of each entry of a list.
void ShellWordReader::cut(Wanted& wanted, const std::string& rest) {
  const auto found = context_.values.find(wanted.name);
  if (found == context_.values.end() || found->second.empty()) {
    return;
  }
  Words entries = found->second;
  if (!wanted.whole) {
    wanted.instead = cut(entries.front(), rest);
    return;
  }
  if (!rest.starts_with(':')) {
    for (std::string& entry : entries) {
      const std::optional<std::string> kept = cut(entry, rest);
      if (!kept) {
        return;
      }
      entry = *kept;
    }
    wanted.entries = entries;
    return;
  }
  if (wanted.name == "@" || wanted.name == "*") {
    entries.insert(entries.begin(), "$0");
  }
  const auto part = range(rest, entries.size());
  if (part && has_known_size(entries)) {
    wanted.entries = Words(entries.begin() + part->first, entries.begin() + part->second);
  }
}

// "!NAME[@]": the indices of a list.
ShellWordReader::Wanted ShellWordReader::wanted_indices(const std::string& whole) {
  Wanted wanted;
  wanted.name = whole.substr(1, whole.size() - 4);
  wanted.whole = true;
  wanted.entries = indices(wanted.name);
  if (!wanted.entries) {
    wanted.instead = marked(kUnknownWordsMark, "${", whole + "}");
  }
  return wanted;
}

// "#NAME", "#NAME[@]", "#NAME[3]", "#@".
ShellWordReader::Wanted ShellWordReader::wanted_length(const std::string& inner) {
  Wanted wanted;
  const bool list = inner.ends_with("[@]") || inner.ends_with("[*]");
  wanted.name = inner.substr(1, inner.size() - 1 - (list ? 3 : 0));
  const bool arguments = wanted.name == "@" || wanted.name == "*";
  if (wanted.name.find('[') != std::string::npos) {
    std::string index = wanted.name.substr(wanted.name.find('['));
    wanted.name = element_name(list_of(wanted.name), index);
  }
  wanted.instead =
      length(wanted.name, list || arguments).value_or(marked(kUnknownMark, "${", inner + "}"));
  return wanted;
}

// What stands behind the name: a default, a word instead, a part. `whole`: all within the braces.
void ShellWordReader::apply_operation(Wanted& wanted, const std::string& rest,
                                      const std::string& whole) {
  const auto found = context_.values.find(wanted.name);
  const bool is_set = found != context_.values.end();
  const bool has_text = is_set && !is_empty(found->second);  // what stands behind may change it
  if (begins_with_any(rest, {":-", "-", ":=", "="})) {
    wanted.has_otherwise = true;
    wanted.also_for_empty = rest.starts_with(':');
    const std::size_t operation = wanted.also_for_empty ? 1 : 0;
    wanted.otherwise = behind(rest.substr(operation + 1));
    const bool needed = !is_set || (wanted.also_for_empty && !has_text);
    if (rest[operation] == '=' && sets && needed) {
      context_.values[wanted.name] = {wanted.otherwise};
      context_.values.erase(keys_of(wanted.name));
    }
  } else if (begins_with_any(rest, {":+", "+"})) {
    const bool full = rest.starts_with(':') ? has_text : is_set;
    wanted.instead = full ? behind(rest.substr(rest.find('+') + 1)) : "";
  } else if (!rest.empty() && !begins_with_any(rest, {":?", "?"})) {
    cut(wanted, rest);
    if (!wanted.instead && !wanted.entries) {
      wanted.instead = marked(kUnknownMark, "${", whole + "}");
    }
  }
}

// Behind "${", up to its '}'.
ShellWordReader::Wanted ShellWordReader::braced() {
  const std::size_t group_end = end_of_group(text, at, '}');
  const std::size_t closed = text[group_end - 1] == '}' ? group_end - 1 : group_end;
  const std::string whole = text.substr(at, closed - at);
  go_to(group_end);
  const bool is_indirect = whole.starts_with('!');
  const std::string inner = is_indirect ? referred(whole).value_or(whole) : whole;
  if (is_indirect && (whole.ends_with("[@]") || whole.ends_with("[*]"))) {
    return wanted_indices(whole);
  }
  if (inner.starts_with('#') && inner.size() > 1) {
    return wanted_length(inner);
  }
  std::size_t end = 0;
  while (end < inner.size() && is_name_letter(inner[end])) { ++end; }
  end += end == 0 && (inner.starts_with('@') || inner.starts_with('*')) ? 1 : 0;
  Wanted wanted;
  wanted.name = inner.substr(0, end);
  wanted.whole = wanted.name == "@" || wanted.name == "*";
  wanted.joined = wanted.name == "*";
  std::string rest = inner.substr(end);
  if (rest.starts_with("[@]") || rest.starts_with("[*]")) {
    wanted.whole = true;
    wanted.joined = rest[1] == '*';
    rest = rest.substr(3);
  } else if (rest.starts_with('[')) {
    wanted.name = element_name(wanted.name, rest);
  }
  apply_operation(wanted, rest, whole);
  return wanted;
}

void ShellWordReader::put(Words& words, std::string& current, bool& has, const Wanted& wanted,
                          bool in_quotes) {
  context_.mentioned.insert(wanted.name == "*" ? "@" : list_of(wanted.name));
  if (wanted.instead) {
    append(words, current, has, *wanted.instead, in_quotes);
    return;
  }
  const auto found = context_.values.find(wanted.name);
  const bool is_set = found != context_.values.end();
  if (wanted.has_otherwise && (!is_set || (wanted.also_for_empty && is_empty(found->second)))) {
    append(words, current, has, wanted.otherwise, in_quotes);
    return;
  }
  const bool is_empty_list = is_set && wanted.entries.value_or(found->second).empty();
  if (!is_set || is_empty_list) {
    if (wanted.whole && is_set && current.empty()) {
      has = false;  // "${NAME[@]}" of an empty list is no word
    }
    append(words, current, has, is_set ? "" : marked(kUnsetMark, "$", wanted.name), in_quotes);
    return;
  }
  if (!wanted.whole) {
    append(words, current, has, found->second.front(), in_quotes);
    return;
  }
  const Words entries = wanted.entries.value_or(found->second);
  const std::string separators = field_separators(context_.values);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0 && wanted.joined && in_quotes) {
      current += separators.substr(0, 1);
    } else if (i > 0) {
      end_word(words, current, has);
      has = in_quotes;
    }
    append(words, current, has, entries[i], in_quotes);
  }
}

}  // namespace shardplan
