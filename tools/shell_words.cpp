#include "tools/shell_words.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "data/input_error.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostWords = 1 << 20;

bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

bool is_name(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, is_name_letter) &&
         std::isdigit(static_cast<unsigned char>(word.front())) == 0;
}

class ShellReader {
 public:
  ShellReader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  ShellScript whole() {
    while (at_ < text_.size()) { command(); }
    for (const std::string& name : exported_) {
      const auto value = values_.find(name);
      if (value != values_.end() && !value->second.empty()) {
        script_.exported[name] = value->second.front();
      }
    }
    return std::move(script_);
  }

 private:
  using Words = std::vector<std::string>;

  char now() const { return at_ < text_.size() ? text_[at_] : '\n'; }
  char ahead() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\n'; }
  void next() {
    line_ += now() == '\n' ? 1 : 0;
    ++at_;
  }

  // Blanks and continued lines; a comment up to its line's end.
  void skip_blanks() {
    while (at_ < text_.size()) {
      if (now() == ' ' || now() == '\t' || now() == '\r') {
        next();
      } else if (now() == '\\' && (ahead() == '\n' || ahead() == '\r')) {
        while (now() != '\n') { next(); }
        next();
      } else if (now() == '#') {
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        const std::string comment = text_.substr(at_, end - at_);
        if (comment.starts_with("#SBATCH")) {
          script_.comments.push_back(comment);
        }
        at_ = end;
      } else {
        return;
      }
    }
  }

  static bool ends_command(char letter) {
    return letter == '\n' || letter == ';' || letter == '|' || letter == '&';
  }

  void command() {
    Words words;
    std::int64_t first_line = 0;
    skip_blanks();
    while (at_ < text_.size() && !ends_command(now())) {
      first_line = first_line == 0 ? line_ : first_line;
      if (now() == '<' || now() == '>') {
        redirection();
      } else if (now() == '(' || now() == ')') {
        next();
      } else if (!assignment(words)) {
        word(words);
      }
      skip_blanks();
      if (words.size() > kMostWords) {
        throw InputError(file_ + ":" + std::to_string(line_) +
                         ": found more words than a command has, expected a launch script");
      }
    }
    if (at_ < text_.size()) {
      next();
    }
    finish(std::move(words), first_line);
  }

  // "2>&1", "> file", "<<EOF".
  void redirection() {
    const bool here = text_.compare(at_, 2, "<<") == 0;
    while (now() == '<' || now() == '>' || now() == '&' || now() == '-') { next(); }
    skip_blanks();
    Words target;
    if (at_ < text_.size() && !ends_command(now())) {
      word(target);
    }
    if (here && !target.empty()) {
      const std::size_t found = text_.find("\n" + target.front(), at_);
      const std::size_t end = std::min(found, text_.size());
      while (at_ < end) { next(); }
      if (found != std::string::npos) {
        next();
        while (now() != '\n') { next(); }
      }
    }
  }

  // NAME=value, NAME+=value, NAME=(...): only in front of a command's words, or after export.
  bool assignment(const Words& words) {
    static const std::vector<std::string> kDeclare = {
        "export", "local", "readonly", "declare", "typeset", "-x", "-a", "-g", "-r", "env"};
    const auto declares = [](const std::string& each) {
      return std::ranges::find(kDeclare, each) != kDeclare.end() || is_keyword(each);
    };
    if (!std::ranges::all_of(words, declares)) {
      return false;
    }
    std::size_t end = at_;
    while (end < text_.size() && is_name_letter(text_[end])) { ++end; }
    const std::string name = text_.substr(at_, end - at_);
    const bool appends = text_.compare(end, 2, "+=") == 0;
    if (!is_name(name) || !(appends || text_.compare(end, 1, "=") == 0)) {
      return false;
    }
    at_ = end + (appends ? 2 : 1);
    Words value;
    if (now() == '(') {
      array(value);
    } else if (at_ < text_.size() && !ends_command(now()) && now() != ' ' && now() != '\t') {
      Words pieces;
      splits_ = false;
      word(pieces);
      splits_ = true;
      value = {pieces.empty() ? "" : pieces.front()};
    } else {
      value = {""};
    }
    store(name, std::move(value), appends);
    const bool exports = std::ranges::find(words, "export") != words.end() ||
                         std::ranges::find(words, "-x") != words.end() ||
                         std::ranges::find(words, "env") != words.end();
    pending_.push_back(name);
    if (exports) {
      mark_exported(name);
    }
    return true;
  }

  void store(const std::string& name, Words value, bool appends) {
    Words& stored = values_[name];
    const bool both_text = appends && stored.size() == 1 && value.size() == 1 && !arrays_[name];
    if (both_text) {
      stored.front() += value.front();
    } else if (appends) {
      stored.insert(stored.end(), value.begin(), value.end());
    } else {
      stored = std::move(value);
      arrays_[name] = last_was_array_;
    }
    last_was_array_ = false;
  }

  void mark_exported(const std::string& name) {
    exported_.push_back(name);
    script_.export_line[name] = line_;
  }

  void array(Words& value) {
    const std::int64_t first_line = line_;
    last_was_array_ = true;
    next();
    while (at_ < text_.size()) {
      skip_blanks();
      if (now() == ')') {
        next();
        return;
      }
      if (now() == '\n' || now() == ';' || now() == '&' || now() == '|') {
        next();
      } else {
        word(value);
      }
    }
    throw InputError(file_ + ":" + std::to_string(first_line) +
                     ": found a list without an end, expected ')'");
  }

  // One word into one or more: an unquoted variable splits at blanks.
  void word(Words& words) {
    std::string current;
    bool has = false;
    const std::int64_t first_line = line_;
    while (at_ < text_.size()) {
      const char letter = now();
      if (letter == '"') {
        next();
        has = true;
        quoted(words, current, has, first_line);
      } else if (letter == '\'') {
        next();
        has = true;
        while (at_ < text_.size() && now() != '\'') {
          current += now();
          next();
        }
        expect_end('\'', first_line);
      } else if (letter == '$' || letter == '`') {
        expand(words, current, has, !splits_);
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
    const bool only_digits = !current.empty() && std::ranges::all_of(current, [](char d) {
      return d >= '0' && d <= '9';
    });
    if (only_digits && (now() == '>' || now() == '<')) {
      return;  // the number of a stream
    }
    if (has) {
      words.push_back(current);
    }
  }

  void expect_end(char quote, std::int64_t first_line) {
    if (at_ >= text_.size()) {
      throw InputError(file_ + ":" + std::to_string(first_line) +
                       ": found a quotation without an end, expected " + std::string(1, quote));
    }
    next();
  }

  void quoted(Words& words, std::string& current, bool& has, std::int64_t first_line) {
    while (at_ < text_.size() && now() != '"') {
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

  // $NAME, ${NAME}, ${NAME:-default}, ${NAME[@]}, $((...)); anything else stays as it stands.
  void expand(Words& words, std::string& current, bool& has, bool in_quotes) {
    if (text_.compare(at_, 3, "$((") == 0) {
      const std::size_t end = text_.find("))", at_);
      if (end != std::string::npos) {
        const std::string inner = text_.substr(at_ + 3, end - at_ - 3);
        const std::optional<std::int64_t> value = shell_arithmetic(inner, values_);
        current += value ? std::to_string(*value) : "$((" + inner + "))";
        has = true;
        at_ = end + 2;
        return;
      }
    }
    if (text_.compare(at_, 2, "$(") == 0 || now() == '`') {
      copy_substitution(current);
      has = true;
      return;
    }
    next();  // '$'
    std::string name;
    std::string otherwise;
    bool whole_array = false;
    if (now() == '{') {
      next();
      braced(name, otherwise, whole_array);
    } else {
      while (at_ < text_.size() && is_name_letter(now())) {
        name += now();
        next();
      }
    }
    put(words, current, has, {.name = name, .otherwise = otherwise, .whole = whole_array},
        in_quotes);
  }

  void copy_substitution(std::string& current) {
    const bool backquote = now() == '`';
    int depth = 0;
    do {
      depth += now() == '(' ? 1 : now() == ')' ? -1 : 0;
      current += now();
      next();
    } while (at_ < text_.size() && (backquote ? now() != '`' : depth > 0 || now() == '('));
    if (backquote && at_ < text_.size()) {
      current += now();
      next();
    }
  }

  void braced(std::string& name, std::string& otherwise, bool& whole_array) {
    std::string inner;
    int depth = 1;
    while (at_ < text_.size()) {
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
    name = inner.substr(0, end);
    const std::string rest = inner.substr(end);
    whole_array = rest.starts_with("[@]") || rest.starts_with("[*]");
    for (const char* form : {":-", "-", ":="}) {
      if (rest.starts_with(form)) {
        otherwise =
            ShellReader(rest.substr(std::string_view(form).size()), file_).one_word(values_);
        return;
      }
    }
  }

  std::string one_word(const ShellValues& values) {
    values_ = values;
    splits_ = false;
    Words words;
    std::string text;
    while (at_ < text_.size()) {
      word(words);
      if (at_ < text_.size()) {
        words.push_back(std::string(1, now()));
        next();
      }
    }
    for (const std::string& piece : words) { text += piece; }
    return text;
  }

  struct Wanted {
    std::string name;
    std::string otherwise;
    bool whole = false;
  };

  void put(Words& words, std::string& current, bool& has, const Wanted& wanted, bool in_quotes) {
    const auto found = values_.find(wanted.name);
    if (found == values_.end() || found->second.empty() ||
        (found->second.front().empty() && !wanted.otherwise.empty())) {
      const bool kept = wanted.otherwise.empty() && found == values_.end();
      const std::string text = kept ? "$" + wanted.name : wanted.otherwise;
      has = has || !text.empty();
      append(words, current, text, in_quotes);
      return;
    }
    if (!wanted.whole) {
      has = has || in_quotes || !found->second.front().empty();
      append(words, current, found->second.front(), in_quotes);
      return;
    }
    for (std::size_t i = 0; i < found->second.size(); ++i) {
      if (i > 0) {
        words.push_back(current);
        current.clear();
      }
      has = true;
      append(words, current, found->second[i], in_quotes);
    }
  }

  static void append(Words& words, std::string& current, const std::string& text, bool in_quotes) {
    for (const char letter : text) {
      const bool blank = letter == ' ' || letter == '\t' || letter == '\n';
      if (!blank || in_quotes) {
        current += letter;
      } else if (!current.empty()) {
        words.push_back(current);
        current.clear();
      }
    }
  }

  static bool is_keyword(const std::string& word) {
    static const std::vector<std::string> kWords = {"if",    "then", "else", "elif", "fi",   "for",
                                                    "while", "do",   "done", "case", "esac", "{",
                                                    "}",     "!",    "time", "exec", "set"};
    return std::ranges::find(kWords, word) != kWords.end();
  }

  void finish(Words words, std::int64_t first_line) {
    if (!words.empty() && (words.front() == "if" || words.front() == "case") && !noted_) {
      noted_ = true;
      script_.notes.push_back(file_ + ":" + std::to_string(first_line) +
                              ": conditions are not evaluated: every branch is read, the last "
                              "value of a variable counts");
    }
    if (!words.empty() && words.front() == "export") {
      for (const std::string& name : words) {
        if (is_name(name) && name != "export") {
          mark_exported(name);
        }
      }
    }
    std::erase_if(words, [](const std::string& each) { return each == "export"; });
    while (!words.empty() && is_keyword(words.front())) { words.erase(words.begin()); }
    if (!words.empty()) {
      for (const std::string& name : pending_) { mark_exported(name); }  // NAME=value command
      script_.commands.push_back({.words = std::move(words), .line = first_line});
    }
    pending_.clear();
  }

  const std::string text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
  ShellValues values_;
  std::map<std::string, bool> arrays_;
  std::vector<std::string> exported_;
  std::vector<std::string> pending_;  // assigned in front of the command that is being read
  bool splits_ = true;
  bool last_was_array_ = false;
  bool noted_ = false;
  ShellScript script_;
};

}  // namespace

ShellScript read_shell(const std::string& text, const std::string& file) {
  return ShellReader(text, file).whole();
}

}  // namespace shardplan
