// What stands behind a '$' or between backquotes.
#include "tools/from/shell/expansion.h"

#include "data/read/input_error.h"
#include "tools/from/shell/word_reader.h"

namespace shardplan {
namespace {

constexpr int kDeepest = 16;  // ${A:-${B:-...}}

}  // namespace

std::string marked(char mark, std::string_view opening, const std::string& text) {
  std::string all(1, mark);
  all.append(opening).append(text).append(1, kEndMark);
  return all;
}

// $((...)), $[...]
bool ShellWordReader::calculation(std::string& current) {
  const bool brackets = begins("$[");
  if (!brackets && !begins("$((")) {
    return false;
  }
  const std::size_t width = brackets ? 1 : 2;
  const std::size_t end = end_of_group(text, at + 2, brackets ? ']' : ')');
  const std::string whole = text.substr(at, end - at);
  if (!whole.ends_with(brackets ? "]" : "))")) {
    return false;
  }
  const std::optional<std::int64_t> value =
      inner_reader(whole.substr(1 + width, whole.size() - 1 - 2 * width)).arithmetic();
  current += value ? std::to_string(*value) : marked(kUnknownMark, "", whole);
  go_to(end);
  return true;
}

// $NAME, ${NAME}, ${NAME:-default}, ${NAME:+if set}, ${NAME[@]}, $((...)), $(...).
void ShellWordReader::expand(Words& words, std::string& current, bool& has, bool in_quotes) {
  if (calculation(current)) {
    has = true;
    return;
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
    wanted.joined = now() == '*';
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
  Words given = arguments == context_.values.end() ? Words{} : arguments->second;
  std::erase(given, marked(kUnsetMark, "$", "@"));
  current += letter == '#' && has_known_size(given) ? std::to_string(given.size())
             : letter == '?'                        ? context_.exit_status
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
    current += marked(in_quotes ? kUnknownMark : kUnknownWordsMark, "", whole);
    has = true;
  }
}

ShellWordReader ShellWordReader::inner_reader(const std::string& inner) {
  if (depth_ == kDeepest) {
    throw InputError(file + ":" + std::to_string(line) + ": found more than " +
                     std::to_string(kDeepest) + " expansions within each other, expected fewer");
  }
  return {inner, file, context_, line, depth_ + 1};
}

// What stands behind the '-' of ":-" and its like.
std::string ShellWordReader::behind(const std::string& rest) {
  return inner_reader(rest).one_word();
}

std::string ShellWordReader::pattern_behind(const std::string& rest) {
  ShellWordReader reader = inner_reader(rest);
  reader.is_pattern = true;
  return plain(reader.one_word());
}

}  // namespace shardplan
