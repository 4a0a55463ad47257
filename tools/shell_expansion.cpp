// What stands behind a '$' or between backquotes.
#include <charconv>
#include <string_view>

#include "data/input_error.h"
#include "tools/shell_condition.h"
#include "tools/shell_list.h"
#include "tools/shell_word_reader.h"

namespace shardplan {
namespace {

constexpr int kDeepest = 16;  // ${A:-${B:-...}}

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

std::string marked(char mark, std::string_view opening, const std::string& text) {
  std::string all(1, mark);
  all.append(opening).append(text).append(1, kEndMark);
  return all;
}

// $NAME, ${NAME}, ${NAME:-default}, ${NAME:+if set}, ${NAME[@]}, $((...)), $(...).
void ShellWordReader::expand(Words& words, std::string& current, bool& has, bool in_quotes) {
  if (begins("$((")) {
    const std::size_t end = end_of_group(text, at + 2, ')');
    if (text.compare(end - 2, 2, "))") == 0) {
      const std::string inner = text.substr(at + 3, end - at - 5);
      const std::optional<std::int64_t> value = shell_arithmetic(inner, context_.values);
      current += value ? std::to_string(*value) : marked(kUnknownMark, "$((", inner + "))");
      has = true;
      go_to(end);
      return;
    }
  }
  if (begins("$(") || now() == '`') {
    substitution(words, current, has, in_quotes);
    return;
  }
  if (!in_quotes && begins("$'")) {
    has = true;
    ansi_quoted(current);
    return;
  }
  next();  // '$'
  if (special(current, has)) {
    return;
  }
  Wanted wanted;
  if (now() == '{') {
    next();
    wanted = braced();
  } else if (now() == '@' || now() == '*') {
    wanted.name = std::string(1, now());
    wanted.whole = true;
    next();
  } else {
    const bool numbered = std::isdigit(static_cast<unsigned char>(now())) != 0;
    while (at < text.size() && is_name_letter(now()) && !(numbered && !wanted.name.empty())) {
      wanted.name += now();
      next();
    }
  }
  put(words, current, has, wanted, in_quotes);
  check_size(current, wanted.name);
}

// $#, $?, $$ and $!; a '$' that means itself.
bool ShellWordReader::special(std::string& current, bool& has) {
  const char letter = now();
  const bool stands_alone = at >= text.size() || letter == ' ' || letter == '"' || letter == '\n' ||
                            letter == '.' || letter == '/' || letter == ')' || letter == '\'';
  if (stands_alone) {
    current += letter == '"' ? "" : "$";
    has = has || !current.empty();
    return true;
  }
  if (letter != '#' && letter != '?' && letter != '$' && letter != '!') {
    return false;
  }
  if (letter == '#') {
    context_.mentioned.insert("@");
  }
  // f "$@" of a script without arguments gives none.
  const auto arguments = context_.values.find("@");
  const std::string none = marked(kUnsetMark, "$", "@");
  current += letter == '#'
                 ? std::to_string(arguments == context_.values.end()
                                      ? 0
                                      : std::ranges::count_if(
                                            arguments->second,
                                            [&](const std::string& each) { return each != none; }))
             : letter == '?' ? "0"
                             : marked(kUnknownMark, "$", std::string(1, letter));
  has = true;
  next();
  return true;
}

void ShellWordReader::ansi_quoted(std::string& current) {
  const std::int64_t first_line = line;
  next();
  next();
  while (at < text.size() && now() != '\'') {
    if (now() == '\\') {
      next();
      current += now() == 'n' ? '\n' : now() == 't' ? '\t' : now();
    } else {
      current += now();
    }
    next();
  }
  expect_end('\'', first_line);
}

void ShellWordReader::substitution(Words& words, std::string& current, bool& has, bool in_quotes) {
  const bool backquote = now() == '`';
  const std::size_t opening = backquote ? 1 : 2;
  const std::size_t end = end_of_group(text, at + opening, backquote ? '`' : ')');
  const std::string whole = text.substr(at, end - at);
  const std::string inner =
      whole.substr(opening, whole.size() - std::min(whole.size(), opening + 1));
  const std::optional<std::string> output =
      context_.substitute ? context_.substitute(inner) : std::nullopt;
  go_to(end);
  if (output) {
    has = has || in_quotes;
    append(words, current, has, *output, in_quotes);
    check_size(current, "(...)");
  } else {
    current += marked(kUnknownMark, "", whole);
    has = true;
  }
}

ShellWordReader ShellWordReader::within(const std::string& rest) {
  if (depth_ == kDeepest) {
    throw InputError(file + ":" + std::to_string(line) + ": found more than " +
                     std::to_string(kDeepest) + " defaults within each other, expected fewer");
  }
  return ShellWordReader(rest, file, context_, line, depth_ + 1);
}

// What stands behind the '-' of ":-" and its like.
std::string ShellWordReader::behind(const std::string& rest) {
  return within(rest).one_word();
}

std::string ShellWordReader::pattern_behind(const std::string& rest) {
  ShellWordReader reader = within(rest);
  reader.is_pattern = true;
  return plain(reader.one_word());
}

// "[3]" or "[$KEY]" at the beginning of `rest`, which is taken from it: the entry's name, with its
// value among the variables.
std::string ShellWordReader::element_name(const std::string& name, std::string& rest) {
  const std::size_t end = end_of_group(rest, 1, ']');
  const std::string index = behind(rest.substr(1, end - 2));
  rest = rest.substr(end);
  const std::optional<std::string> key = list_key(context_, name, index);
  const std::string element = name + "[" + key.value_or(plain(index)) + "]";
  context_.values.erase(element);
  const auto list = context_.values.find(name);
  if (list == context_.values.end()) {
    return element;
  }
  const std::string* const value = key ? list_entry(context_.values, name, *key) : nullptr;
  const bool is_open = !key || std::ranges::any_of(list->second, [](const std::string& each) {
    return known_word(each).unknown;
  });
  if (value != nullptr) {
    context_.values[element] = {*value};
  } else if (is_open) {
    context_.values[element] = {marked(kUnknownMark, "${", element + "}")};
  }
  return element;
}

// Cuts, replacements and cases of a value; nothing where `rest` is none of them.
std::optional<std::string> ShellWordReader::cut(const std::string& name, const std::string& rest) {
  const auto found = context_.values.find(name);
  if (found == context_.values.end() || found->second.empty()) {
    return std::nullopt;
  }
  const std::string& value = found->second.front();
  const KnownWord known = known_word(value);
  if (known.unknown || !known.missing.empty()) {
    return std::nullopt;
  }
  for (const std::string_view form : {"##", "#", "%%", "%"}) {
    if (rest.starts_with(form)) {
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
    std::string replaced = value;
    std::size_t place = replaced.find(from);
    while (place != std::string::npos) {
      replaced.replace(place, from.size(), to);
      place = all ? replaced.find(from, place + to.size()) : std::string::npos;
    }
    return replaced;
  }
  return std::nullopt;
}

// Behind "${", up to its '}'.
ShellWordReader::Wanted ShellWordReader::braced() {
  const std::size_t group_end = end_of_group(text, at, '}');
  const std::size_t closed = text[group_end - 1] == '}' ? group_end - 1 : group_end;
  const std::string inner = text.substr(at, closed - at);
  go_to(group_end);
  std::size_t end = 0;
  while (end < inner.size() && is_name_letter(inner[end])) { ++end; }
  end += end == 0 && (inner.starts_with('@') || inner.starts_with('*')) ? 1 : 0;
  std::string rest = inner.substr(end);
  Wanted wanted;
  wanted.name = inner.substr(0, end);
  wanted.whole = wanted.name == "@" || wanted.name == "*";
  if (inner.starts_with('#') && inner.size() > 1) {  // how many entries, or letters
    const bool list = inner.ends_with("[@]") || inner.ends_with("[*]");
    wanted.name = inner.substr(1, inner.size() - 1 - (list ? 3 : 0));
    const auto found = context_.values.find(wanted.name);
    if (found != context_.values.end()) {
      wanted.instead = std::to_string(list                    ? found->second.size()
                                      : found->second.empty() ? 0
                                                              : found->second.front().size());
      return wanted;
    }
    rest.assign(1, '#');
  }
  if (rest.starts_with("[@]") || rest.starts_with("[*]")) {
    wanted.whole = true;
    rest = rest.substr(3);
  } else if (rest.starts_with('[')) {
    wanted.name = element_name(wanted.name, rest);
  }
  const auto found = context_.values.find(wanted.name);
  const bool is_set = found != context_.values.end();
  if (begins_with_any(rest, {":-", "-", ":=", "="})) {
    wanted.has_otherwise = true;
    wanted.also_for_empty = rest.starts_with(':');
    const std::size_t operation = wanted.also_for_empty ? 1 : 0;
    wanted.otherwise = behind(rest.substr(operation + 1));
    const bool needed = !is_set || (wanted.also_for_empty && is_empty(found->second));
    if (rest[operation] == '=' && sets && needed) {
      context_.values[wanted.name] = {wanted.otherwise};
    }
  } else if (begins_with_any(rest, {":+", "+"})) {
    const bool full = is_set && !(rest.starts_with(':') && is_empty(found->second));
    wanted.instead = full ? behind(rest.substr(rest.find('+') + 1)) : "";
  } else if (!rest.empty() && !begins_with_any(rest, {":?", "?"})) {
    wanted.instead = cut(wanted.name, rest).value_or(marked(kUnknownMark, "${", inner + "}"));
  }
  return wanted;
}

void ShellWordReader::put(Words& words, std::string& current, bool& has, const Wanted& wanted,
                          bool in_quotes) {
  context_.mentioned.insert(wanted.name == "*" ? "@"
                                               : wanted.name.substr(0, wanted.name.find('[')));
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
  if (!is_set || found->second.empty()) {
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
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    if (i > 0) {
      end_word(words, current, has);
      has = in_quotes;
    }
    append(words, current, has, found->second[i], in_quotes);
  }
}

}  // namespace shardplan
