#include "tools/shell_words.h"

#include <algorithm>
#include <cctype>

#include "data/input_error.h"
#include "tools/shell_word_reader.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostWords = 1 << 14;

bool is_name(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, is_name_letter) &&
         std::isdigit(static_cast<unsigned char>(word.front())) == 0;
}

class ShellReader {
 public:
  ShellReader(const std::string& text, const std::string& file) : in_(text, file, values_) {}

  ShellScript whole() {
    while (in_.at < in_.text.size()) { command(); }
    for (const std::string& name : exported_) {
      const auto value = values_.find(name);
      if (value != values_.end() && !value->second.empty()) {
        script_.exported[name] = value->second.front();
      }
    }
    script_.variables = std::move(values_);
    return std::move(script_);
  }

 private:
  using Words = ShellWordReader::Words;

  // Blanks and continued lines; a comment up to its line's end.
  void skip_blanks() {
    while (in_.at < in_.text.size()) {
      if (in_.now() == ' ' || in_.now() == '\t' || in_.now() == '\r') {
        in_.next();
      } else if (in_.now() == '\\' && (in_.ahead() == '\n' || in_.ahead() == '\r')) {
        while (in_.now() != '\n') { in_.next(); }
        in_.next();
      } else if (in_.now() == '#') {
        const std::size_t end = std::min(in_.text.find('\n', in_.at), in_.text.size());
        const std::string comment = in_.text.substr(in_.at, end - in_.at);
        if (comment.starts_with("#SBATCH")) {
          script_.comments.push_back(comment);
        }
        in_.at = end;
      } else {
        return;
      }
    }
  }

  void command() {
    Words words;
    std::int64_t first_line = 0;
    skip_blanks();
    while (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now())) {
      first_line = first_line == 0 ? in_.line : first_line;
      if (in_.now() == '<' || in_.now() == '>') {
        redirection();
      } else if (in_.now() == '(' || in_.now() == ')') {
        in_.next();
      } else if (!assignment(words)) {
        in_.word(words);
      }
      skip_blanks();
      if (words.size() > kMostWords) {
        throw InputError(in_.file + ":" + std::to_string(in_.line) +
                         ": found more words than a command has, expected a launch script");
      }
    }
    if (in_.at < in_.text.size()) {
      in_.next();
    }
    finish(std::move(words), first_line);
  }

  // "2>&1", "> file", "<<EOF".
  void redirection() {
    const bool here = in_.text.compare(in_.at, 2, "<<") == 0;
    while (in_.now() == '<' || in_.now() == '>' || in_.now() == '&' || in_.now() == '-') {
      in_.next();
    }
    skip_blanks();
    Words target;
    if (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now())) {
      in_.word(target);
    }
    if (here && !target.empty()) {
      const std::size_t found = in_.text.find("\n" + target.front(), in_.at);
      const std::size_t end = std::min(found, in_.text.size());
      while (in_.at < end) { in_.next(); }
      if (found != std::string::npos) {
        in_.next();
        while (in_.now() != '\n') { in_.next(); }
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
    std::size_t end = in_.at;
    while (end < in_.text.size() && is_name_letter(in_.text[end])) { ++end; }
    const std::string name = in_.text.substr(in_.at, end - in_.at);
    const bool appends = in_.text.compare(end, 2, "+=") == 0;
    if (!is_name(name) || !(appends || in_.text.compare(end, 1, "=") == 0)) {
      return false;
    }
    in_.at = end + (appends ? 2 : 1);
    Words value;
    if (in_.now() == '(') {
      array(value);
    } else if (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now()) &&
               in_.now() != ' ' && in_.now() != '\t') {
      Words pieces;
      in_.splits = false;
      in_.word(pieces);
      in_.splits = true;
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
    script_.export_line[name] = in_.line;
  }

  void array(Words& value) {
    const std::int64_t first_line = in_.line;
    last_was_array_ = true;
    in_.next();
    while (in_.at < in_.text.size()) {
      skip_blanks();
      if (in_.now() == ')') {
        in_.next();
        return;
      }
      const std::size_t begin = in_.at;
      in_.word(value);
      if (in_.at == begin) {  // what begins no word: a line's end, an operator
        in_.next();
      }
    }
    throw InputError(in_.file + ":" + std::to_string(first_line) +
                     ": found a list without an end, expected ')'");
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
      script_.notes.push_back(in_.file + ":" + std::to_string(first_line) +
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
    words.erase(words.begin(), std::ranges::find_if_not(words, is_keyword));
    if (!words.empty()) {
      for (const std::string& name : pending_) { mark_exported(name); }  // NAME=value command
      script_.commands.push_back({.words = std::move(words), .line = first_line});
    }
    pending_.clear();
  }

  ShellValues values_;
  ShellWordReader in_;
  std::map<std::string, bool> arrays_;
  std::vector<std::string> exported_;
  std::vector<std::string> pending_;  // assigned in front of the command that is being read
  bool last_was_array_ = false;
  bool noted_ = false;
  ShellScript script_;
};

}  // namespace

ShellScript read_shell(const std::string& text, const std::string& file) {
  return ShellReader(text, file).whole();
}

}  // namespace shardplan
