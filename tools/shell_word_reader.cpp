#include "tools/shell_word_reader.h"

#include <optional>
#include <string_view>

#include "data/input_error.h"

namespace shardplan {
namespace {

// A=$A$A, forty times, would fill any memory.
constexpr std::size_t kMostPutIn = std::size_t{1} << 21;
constexpr int kDeepest = 16;  // ${A:-${B:-...}}

}  // namespace

void ShellWordReader::word(Words& words) {
  std::string current;
  bool has = false;
  const std::int64_t first_line = line;
  while (at < text.size()) {
    const char letter = now();
    if (letter == '"') {
      next();
      has = true;
      quoted(words, current, has, first_line);
    } else if (letter == '\'') {
      next();
      has = true;
      while (at < text.size() && now() != '\'') {
        current += now();
        next();
      }
      expect_end('\'', first_line);
    } else if (letter == '$' || letter == '`') {
      expand(words, current, has, !splits);
    } else if (letter == '\\' && ahead() != '\n') {
      next();
      current += now();
      has = true;
      next();
    } else if (letter == '\\' || letter == ' ' || letter == '\t' || letter == '\r' ||
               letter == ')' || letter == '(' || letter == '<' || letter == '>' ||
               ends_command(letter)) {
      break;
    } else {
      current += letter;
      has = true;
      next();
    }
  }
  const bool only_digits =
      !current.empty() && std::ranges::all_of(current, [](char d) { return d >= '0' && d <= '9'; });
  if (only_digits && (now() == '>' || now() == '<')) {
    return;  // the number of a stream
  }
  if (has) {
    words.push_back(current);
  }
}

void ShellWordReader::expect_end(char quote, std::int64_t first_line) {
  if (at >= text.size()) {
    throw InputError(file + ":" + std::to_string(first_line) +
                     ": found a quotation without an end, expected " + std::string(1, quote));
  }
  next();
}

void ShellWordReader::quoted(Words& words, std::string& current, bool& has,
                             std::int64_t first_line) {
  while (at < text.size() && now() != '"') {
    if (now() == '\\' && (ahead() == '\n')) {
      next();
      next();
    } else if (now() == '\\' && (ahead() == '"' || ahead() == '$' || ahead() == '\\')) {
      next();
      current += now();
      next();
    } else if (now() == '$' || now() == '`') {
      expand(words, current, has, true);
    } else {
      current += now();
      next();
    }
  }
  expect_end('"', first_line);
}

// $NAME, ${NAME}, ${NAME:-default}, ${NAME:+if set}, ${NAME[@]}, $((...)); anything else stays as
// it stands.
void ShellWordReader::expand(Words& words, std::string& current, bool& has, bool in_quotes) {
  if (text.compare(at, 3, "$((") == 0) {
    const std::size_t end = text.find("))", at);
    if (end != std::string::npos) {
      const std::string inner = text.substr(at + 3, end - at - 3);
      const std::optional<std::int64_t> value = shell_arithmetic(inner, values_);
      current += value ? std::to_string(*value) : "$((" + inner + "))";
      has = true;
      at = end + 2;
      return;
    }
  }
  if (text.compare(at, 2, "$(") == 0 || now() == '`') {
    copy_substitution(current);
    has = true;
    return;
  }
  next();  // '$'
  Wanted wanted;
  if (now() == '{') {
    next();
    wanted = braced();
  } else {
    while (at < text.size() && is_name_letter(now())) {
      wanted.name += now();
      next();
    }
  }
  put(words, current, has, wanted, in_quotes);
}

void ShellWordReader::copy_substitution(std::string& current) {
  const bool backquote = now() == '`';
  int depth = 0;
  do {
    depth += now() == '(' ? 1 : now() == ')' ? -1 : 0;
    current += now();
    next();
  } while (at < text.size() && (backquote ? now() != '`' : depth > 0 || now() == '('));
  if (backquote && at < text.size()) {
    current += now();
    next();
  }
}

// Behind "${", up to its '}'.
ShellWordReader::Wanted ShellWordReader::braced() {
  std::string inner;
  int depth = 1;
  while (at < text.size()) {
    depth += now() == '{' ? 1 : now() == '}' ? -1 : 0;
    if (depth == 0) {
      next();
      break;
    }
    inner += now();
    next();
  }
  const std::size_t end = std::min(
      static_cast<std::size_t>(std::ranges::find_if_not(inner, is_name_letter) - inner.begin()),
      inner.size());
  const std::string rest = inner.substr(end);
  Wanted wanted;
  wanted.name = inner.substr(0, end);
  const auto begins = [&](const std::vector<std::string_view>& forms) {
    return std::ranges::any_of(forms,
                               [&](std::string_view form) { return rest.starts_with(form); });
  };
  const auto behind = [&](std::string_view form) {
    if (depth_ == kDeepest) {
      throw InputError(file + ":" + std::to_string(line) + ": found more than " +
                       std::to_string(kDeepest) + " defaults within each other, expected fewer");
    }
    return ShellWordReader(rest.substr(rest.find(form) + 1), file, values_, depth_ + 1).one_word();
  };
  if (begins({":-", "-", ":=", "="})) {
    wanted.otherwise = behind(begins({":-", "-"}) ? "-" : "=");
  } else if (begins({":+", "+"})) {
    const auto found = values_.find(wanted.name);
    const bool set = found != values_.end() && !found->second.empty();
    wanted.instead = set ? behind("+") : "";
  } else if (begins({"[@]", "[*]"})) {
    wanted.whole = true;
  } else if (!rest.empty() && rest != "[0]" && !begins({":?", "?"})) {
    wanted.instead = "${" + inner + "}";  // cuts and replacements are not made
  }
  return wanted;
}

std::string ShellWordReader::one_word() {
  splits = false;
  Words words;
  std::string whole;
  while (at < text.size()) {
    word(words);
    if (at < text.size()) {
      words.push_back(std::string(1, now()));
      next();
    }
  }
  for (const std::string& piece : words) { whole += piece; }
  return whole;
}

void ShellWordReader::put(Words& words, std::string& current, bool& has, const Wanted& wanted,
                          bool in_quotes) {
  if (wanted.instead) {
    append(words, current, has, *wanted.instead, in_quotes);
    return;
  }
  const auto found = values_.find(wanted.name);
  if (found == values_.end() || found->second.empty() ||
      (found->second.front().empty() && !wanted.otherwise.empty())) {
    const bool kept = wanted.otherwise.empty() && found == values_.end();
    if (wanted.whole && !kept && current.empty()) {
      has = false;  // "${NAME[@]}" of an empty list is no word
    }
    append(words, current, has, kept ? "$" + wanted.name : wanted.otherwise, in_quotes);
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

void ShellWordReader::end_word(Words& words, std::string& current, bool& has) {
  if (has) {
    words.push_back(current);
  }
  current.clear();
  has = false;
}

// Blanks outside quotes end a word; nothing between them is no word.
void ShellWordReader::append(Words& words, std::string& current, bool& has,
                             const std::string& piece, bool in_quotes) {
  put_in_ += piece.size() + 1;
  if (put_in_ > kMostPutIn) {
    throw InputError(file + ":" + std::to_string(line) +
                     ": found variables that come to more than " + std::to_string(kMostPutIn) +
                     " bytes, expected a launch script");
  }
  for (const char letter : piece) {
    const bool blank = letter == ' ' || letter == '\t' || letter == '\n';
    if (!blank || in_quotes) {
      current += letter;
      has = true;
    } else {
      end_word(words, current, has);
    }
  }
}

}  // namespace shardplan
