// One word of a shell script after the other: quotations, variables, substitutions.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/shell_words.h"

namespace shardplan {

inline bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// Stands somewhere in a script, and knows the variables that have been set so far.
class ShellWordReader {
 public:
  using Words = std::vector<std::string>;

  // `file` is named in messages; it and `known` must outlive this. `depth`: how many ${...:-...}
  // the script stands in.
  ShellWordReader(std::string script, const std::string& of_file, const ShellValues& known,
                  int depth = 0)
      : text(std::move(script)), file(of_file), values_(known), depth_(depth) {}

  // At the script's end everything is a line's end.
  char now() const { return at < text.size() ? text[at] : '\n'; }
  char ahead() const { return at + 1 < text.size() ? text[at + 1] : '\n'; }
  void next() {
    line += now() == '\n' ? 1 : 0;
    ++at;
  }
  static bool ends_command(char letter) {
    return letter == '\n' || letter == ';' || letter == '|' || letter == '&';
  }

  // One word into one or more: an unquoted variable splits at blanks. Throws InputError, naming the
  // line, for a quotation without an end and for variables that grow without one.
  void word(Words& words);

  const std::string text;
  const std::string& file;
  std::size_t at = 0;
  std::int64_t line = 1;
  bool splits = true;  // false: values of variables stay one word

 private:
  struct Wanted {
    std::string name;
    std::string otherwise;
    bool whole = false;                  // every entry of a list
    std::optional<std::string> instead;  // this, whatever the value is
  };

  void expect_end(char quote, std::int64_t first_line);
  void quoted(Words& words, std::string& current, bool& has, std::int64_t first_line);
  void expand(Words& words, std::string& current, bool& has, bool in_quotes);
  void copy_substitution(std::string& current);
  Wanted braced();
  std::string one_word();
  void put(Words& words, std::string& current, bool& has, const Wanted& wanted, bool in_quotes);
  void append(Words& words, std::string& current, bool& has, const std::string& piece,
              bool in_quotes);
  static void end_word(Words& words, std::string& current, bool& has);

  const ShellValues& values_;
  int depth_ = 0;
  std::size_t put_in_ = 0;  // bytes and items of variables, so far
};

}  // namespace shardplan
