#include "tools/from/shell/word_reader.h"

#include <string_view>

#include "data/read/input_error.h"

namespace shardplan {
namespace {

// A=$A$A, forty times, would fill any memory.
constexpr std::size_t kLongestWord = std::size_t{1} << 21;
constexpr std::size_t kMostPutIn = std::size_t{1} << 26;  // over the whole of a script
constexpr std::size_t kMostSteps = std::size_t{1} << 30;
constexpr std::string_view kOfNumbers = "0123456789$(=+~";  // behind a "<<" that shifts

bool is_unknown_mark(char letter) {
  return letter == kUnknownMark || letter == kUnknownWordsMark;
}

}  // namespace

std::string field_separators(const ShellValues& values) {
  const auto found = values.find("IFS");
  return found == values.end() || found->second.empty() ? " \t\n" : found->second.front();
}

bool has_known_size(const std::vector<std::string>& entries) {
  return std::ranges::all_of(entries, [](const std::string& entry) {
    return entry.find(kUnknownWordsMark) == std::string::npos;
  });
}

std::string plain(std::string word) {
  std::erase_if(word, is_mark);
  return word;
}

std::string literal_pattern(const std::string& text) {
  constexpr std::string_view kSpecial = "\\*?[](){}|.+^$";
  std::string pattern;
  bool is_marked = false;
  for (const char letter : text) {
    is_marked = is_mark(letter) ? letter != kEndMark : is_marked;
    pattern += !is_marked && kSpecial.find(letter) != kSpecial.npos ? "\\" : "";
    pattern += letter;
  }
  return pattern;
}

KnownWord known_word(const std::string& word) {
  KnownWord known;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char letter = word[i];
    if (letter != kUnsetMark) {
      known.unknown = known.unknown || is_unknown_mark(letter);
      known.text += is_mark(letter) ? "" : std::string(1, letter);
      continue;
    }
    const std::size_t end = std::min(word.find(kEndMark, i), word.size());
    known.missing.insert(word.substr(i + 2, end - i - 2));  // without the mark and the '$'
    i = end;
  }
  return known;
}

std::size_t end_of_here_document(const std::string& text, std::size_t at,
                                 const std::string& delimiter, bool indented,
                                 std::size_t& body_end) {
  while (at < text.size()) {
    const std::size_t line_end = std::min(text.find('\n', at), text.size());
    std::size_t begin = at;
    while (indented && begin < line_end && text[begin] == '\t') { ++begin; }
    std::string line = text.substr(begin, line_end - begin);
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line == delimiter) {
      body_end = at;
      return std::min(line_end + 1, text.size());
    }
    at = line_end + 1;
  }
  body_end = text.size();
  return text.size();
}

std::size_t end_of_group(const std::string& text, std::size_t at, char closer) {
  struct Group {
    char closer;
    std::string delimiter = {};  // of a here-document that begins behind this line
  };
  std::vector<Group> groups = {{.closer = closer}};  // within each other
  while (at < text.size()) {
    const char letter = text[at];
    std::string& delimiter = groups.back().delimiter;
    const bool in_quotes = groups.back().closer == '"';
    const bool commands = groups.back().closer == ')';
    const bool opens = text.compare(at, 2, "$(") == 0 || text.compare(at, 2, "${") == 0;
    if (letter == groups.back().closer) {
      ++at;
      groups.pop_back();
      if (groups.empty()) {
        return at;
      }
    } else if (letter == '\\') {
      at += 2;
    } else if (letter == '\'' && !in_quotes) {
      at = std::min(text.find('\'', at + 1), text.size() - 1) + 1;
    } else if (letter == '"') {
      ++at;
      groups.push_back({.closer = '"'});
    } else if (opens) {
      at += 2;
      groups.push_back({.closer = text[at - 1] == '(' ? ')' : '}'});
    } else if (letter == '(' && commands) {
      ++at;
      groups.push_back({.closer = ')'});
    } else if (letter == '#' && commands && (text[at - 1] == ' ' || text[at - 1] == '\n')) {
      at = std::min(text.find('\n', at), text.size());
    } else if (commands && text.compare(at, 2, "<<") == 0 && text.compare(at, 3, "<<<") != 0) {
      const std::size_t begin = std::min(text.find_first_not_of("-<'\" ", at), text.size());
      const bool shifts = begin < text.size() && kOfNumbers.find(text[begin]) != kOfNumbers.npos;
      const std::size_t end = std::min(text.find_first_of("'\" \n;|)", begin), text.size());
      delimiter = shifts ? delimiter : text.substr(begin, end - begin);
      at = shifts ? at + 2 : end;
    } else if (letter == '\n' && !delimiter.empty()) {
      std::size_t body_end = 0;
      at = end_of_here_document(text, at + 1, delimiter, true, body_end);
      delimiter.clear();
    } else {
      ++at;
    }
  }
  return text.size();
}

void ShellWordReader::next() {
  if (now() == '\n') {
    const auto jump = jumps.find(at);
    if (jump != jumps.end()) {
      go_to(jump->second);
      return;
    }
    ++line;
  }
  at = std::min(at + 1, text.size());
}

void ShellWordReader::spend(std::size_t steps) {
  context_.steps += std::min(steps, kMostSteps);
  if (context_.steps > kMostSteps) {
    throw InputError(file + ":" + std::to_string(line) +
                     ": found a script that takes too long to follow up to here, expected a "
                     "launch script");
  }
}

void ShellWordReader::go_to(std::size_t target) {
  target = std::min(target, text.size());
  for (; at < target; ++at) { line += text[at] == '\n' ? 1 : 0; }
}

// What no value is known of stays that in a script that is made of it: eval "$COMMAND".
bool ShellWordReader::copy_marked(std::string& current) {
  if (now() != kUnsetMark && !is_unknown_mark(now())) {
    return false;
  }
  const std::size_t end = std::min(text.find(kEndMark, at), text.size() - 1) + 1;
  current += text.substr(at, end - at);
  go_to(end);
  return true;
}

void ShellWordReader::word(Words& words) {
  std::string current;
  bool has = false;
  const std::int64_t first_line = line;
  const std::size_t first = at;
  while (at < text.size()) {
    const char letter = now();
    const std::size_t begin = current.size();
    if (copy_marked(current)) {
      has = true;
    } else if (letter == '"') {
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
    const bool quotes = letter == '"' || letter == '\'' || letter == '\\';
    if (is_pattern && quotes && begin < current.size()) {
      current.replace(begin, std::string::npos, literal_pattern(current.substr(begin)));
    }
  }
  spend((at - first) * kStepsOfLetter);
  const bool only_digits =
      !current.empty() && std::ranges::all_of(current, [](char d) { return d >= '0' && d <= '9'; });
  if (only_digits && (now() == '>' || now() == '<')) {
    return;  // the number of a stream
  }
  if (has || (!splits && at > first)) {  // an empty variable is a word where nothing splits
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

// Only '$', backquotes and what a backslash quotes mean something; up to `end`, or all if it is 0.
void ShellWordReader::expanding(Words& words, std::string& current, bool& has, char end) {
  while (at < text.size() && (end == 0 || now() != end)) {
    if (now() == '\\' && ahead() == '\n') {
      next();
      next();
    } else if (now() == '\\' && (ahead() == '$' || ahead() == '\\' || ahead() == '`' ||
                                 (end != 0 && ahead() == end))) {
      next();
      current += now();
      next();
    } else if (now() == '$' || now() == '`') {
      expand(words, current, has, true);
    } else if (!copy_marked(current)) {
      current += now();
      next();
    }
  }
}

void ShellWordReader::quoted(Words& words, std::string& current, bool& has,
                             std::int64_t first_line) {
  expanding(words, current, has, '"');
  expect_end('"', first_line);
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

std::string ShellWordReader::here_document() {
  std::string current;
  Words words;
  bool has = false;
  expanding(words, current, has, 0);
  for (auto each = words.rbegin(); each != words.rend(); ++each) { current.insert(0, *each + " "); }
  return current;
}

std::optional<std::int64_t> ShellWordReader::arithmetic() {
  const std::string expression = here_document();
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::size_t begin = i;
    while (i < expression.size() && is_name_letter(expression[i])) { ++i; }
    const std::string name = expression.substr(begin, i - begin);
    if (is_shell_name(name)) {
      context_.mentioned.insert(name);
    }
  }
  const ShellNumber number = shell_number(expression, context_.values, context_.assign);
  spend(static_cast<std::size_t>(number.operands) * kStepsOfEntry);
  if (number.is_deep) {
    throw InputError(file + ":" + std::to_string(line) +
                     ": found too many expressions within each other, expected fewer parentheses, "
                     "'?' or '**'");
  }
  return number.value;
}

void ShellWordReader::end_word(Words& words, std::string& current, bool& has) {
  if (has) {
    words.push_back(current);
  }
  current.clear();
  has = false;
}

void ShellWordReader::check_size(const std::string& current, const std::string& name) {
  const bool is_long = current.size() > kLongestWord;
  if (is_long || context_.put_in > kMostPutIn) {
    throw InputError(file + ":" + std::to_string(line) + ": $" + name + ": found more than " +
                     std::to_string(is_long ? kLongestWord : kMostPutIn) +
                     (is_long ? " bytes" : " bytes in all that is put in") +
                     ", expected a launch script");
  }
}

// Separators outside quotes end a word, but not those of what is not known; nothing between blanks
// is no word.
void ShellWordReader::append(Words& words, std::string& current, bool& has,
                             const std::string& piece, bool in_quotes) {
  context_.put_in += piece.size() + sizeof(std::string);
  const std::string separators = in_quotes ? "" : field_separators(context_.values);
  bool known = true;
  bool was_blank = false;
  for (const char letter : piece) {
    known = letter == kEndMark || (known && !is_mark(letter));
    const bool separates = known && separators.find(letter) != std::string::npos;
    const bool is_blank = separates && (letter == ' ' || letter == '\t' || letter == '\n');
    if (!separates) {
      current += letter == kUnknownMark && !in_quotes ? kUnknownWordsMark : letter;
      has = true;
    } else {
      has = has || (!is_blank && !was_blank);  // "a,,b" holds an empty word
      end_word(words, current, has);
    }
    was_blank = is_blank;
  }
}

}  // namespace shardplan
