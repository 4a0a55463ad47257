// One word of a shell script after the other: quotations, variables, substitutions.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/from/shell/arithmetic.h"
#include "tools/from/shell/words.h"

namespace shardplan {

inline bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// Marks in words around what no value is known of: a variable that nothing sets ("$NAME"), and
// anything else ("$(hostname)"). Outside of quotes the latter may be any number of words.
inline constexpr char kUnsetMark = '\x01';
inline constexpr char kUnknownMark = '\x02';
inline constexpr char kEndMark = '\x03';
inline constexpr char kUnknownWordsMark = '\x04';
inline bool is_mark(char letter) {
  return letter >= kUnsetMark && letter <= kUnknownWordsMark;
}
std::string plain(std::string word);  // without marks

// A word for a condition: variables that nothing sets are empty for a shell.
struct KnownWord {
  std::string text;
  std::set<std::string> missing;  // their names
  bool unknown = false;           // it holds something that cannot be known
};
KnownWord known_word(const std::string& word);

// A pattern, of a shell or a regular expression, that matches `text` only.
std::string literal_pattern(const std::string& text);

// Where the group ends whose opening stands before `at`: behind `closer`, or the text's size.
std::size_t end_of_group(const std::string& text, std::size_t at, char closer);

// Behind the line of a here-document that holds `delimiter` alone, searched from the beginning of a
// line at `at`; with `indented` tabs may stand before it. `body_end`: where that line begins.
std::size_t end_of_here_document(const std::string& text, std::size_t at,
                                 const std::string& delimiter, bool indented,
                                 std::size_t& body_end);

// What words share over the whole of a script.
struct ShellWordContext {
  ShellValues values;
  std::set<std::string> maps;       // lists whose keys are any text: declare -A
  std::set<std::string> mentioned;  // "@" for the script's arguments
  std::size_t put_in = 0;           // bytes of variables and items, so far
  std::size_t steps = 0;            // what following the script has cost so far: see spend()
  std::string exit_status = "0";    // $?
  // The output of $(...), where it can be known.
  std::function<std::optional<std::string>(const std::string& script)> substitute = {};
  ShellAssign assign = {};  // what $((NAME = ...)) sets
};

std::string field_separators(const ShellValues& values);  // $IFS

// Whether each entry is one word: nothing in it may be any number of them.
bool has_known_size(const std::vector<std::string>& entries);

inline constexpr std::size_t kStepsOfLetter = 32;  // read as part of a word
inline constexpr std::size_t kStepsOfEntry = 64;   // of a list that is copied or searched

// Stands somewhere in a script, and knows the variables that have been set so far. expansion.cpp
// has what stands behind a '$', braces.cpp what stands behind "${".
class ShellWordReader {
 public:
  using Words = std::vector<std::string>;

  // `depth`: how many ${...:-...} the script stands in. `context` must outlive this.
  ShellWordReader(std::string script, std::string of_file, ShellWordContext& context,
                  std::int64_t first_line = 1, int depth = 0)
      : text(std::move(script)),
        file(std::move(of_file)),
        line(first_line),
        context_(context),
        depth_(depth) {}

  // At the script's end everything is a line's end.
  char now() const { return at < text.size() ? text[at] : '\n'; }
  char ahead() const { return at + 1 < text.size() ? text[at + 1] : '\n'; }
  bool begins(std::string_view word) const {
    return at < text.size() && text.compare(at, word.size(), word) == 0;
  }
  void next();
  void go_to(std::size_t target);  // over any text, counting its lines
  static bool ends_command(char letter) {
    return letter == '\n' || letter == ';' || letter == '|' || letter == '&';
  }

  // Counts what is done to follow the script, in about nanoseconds. Throws InputError where that is
  // more than any launch script asks for.
  void spend(std::size_t steps);

  // One word into one or more: an unquoted variable splits at blanks. Throws InputError, naming the
  // line, for a quotation without an end and for variables that grow without one.
  void word(Words& words);
  // All of the text as one word, with its blanks and operators.
  std::string one_word();
  // All of the text as a here-document whose delimiter is not quoted.
  std::string here_document();
  // All of the text as an expression, whose assignments are made; nothing where it is not known.
  std::optional<std::int64_t> arithmetic();

  const std::string text;
  const std::string file;
  std::size_t at = 0;
  std::int64_t line = 1;
  bool splits = true;                        // false: values of variables stay one word
  bool is_pattern = false;                   // true: what is quoted matches itself only
  bool sets = true;                          // false: ${NAME:=value} sets nothing
  std::map<std::size_t, std::size_t> jumps;  // from a line's end over its here-documents

 private:
  struct Wanted {
    std::string name;
    std::string otherwise;
    bool has_otherwise = false;
    bool also_for_empty = false;         // ":-", not "-"
    bool whole = false;                  // every entry of a list
    bool joined = false;                 // "${NAME[*]}"
    std::optional<std::string> instead;  // this, whatever the value is
    std::optional<Words> entries;        // these, whatever the list's are
  };

  void expect_end(char quote, std::int64_t first_line);
  void expanding(Words& words, std::string& current, bool& has, char end);
  void quoted(Words& words, std::string& current, bool& has, std::int64_t first_line);
  bool copy_marked(std::string& current);
  void ansi_quoted(std::string& current);
  void expand(Words& words, std::string& current, bool& has, bool in_quotes);
  void substitution(Words& words, std::string& current, bool& has, bool in_quotes);
  bool calculation(std::string& current);
  bool special(std::string& current, bool& has);
  Wanted braced();
  Wanted wanted_indices(const std::string& whole);
  Wanted wanted_length(const std::string& inner);
  void apply_operation(Wanted& wanted, const std::string& rest, const std::string& whole);
  std::optional<std::string> length(const std::string& name, bool list) const;
  std::optional<Words> indices(const std::string& name) const;
  std::optional<std::string> referred(const std::string& inner) const;
  std::optional<std::string> cut(const std::string& value, const std::string& rest);
  std::optional<std::pair<std::int64_t, std::int64_t>> range(const std::string& rest,
                                                             std::size_t size);
  void cut(Wanted& wanted, const std::string& rest);
  std::string element_name(const std::string& name, std::string& rest);
  ShellWordReader inner_reader(const std::string& inner);
  std::string behind(const std::string& rest);
  std::string pattern_behind(const std::string& rest);
  void put(Words& words, std::string& current, bool& has, const Wanted& wanted, bool in_quotes);
  void append(Words& words, std::string& current, bool& has, const std::string& piece,
              bool in_quotes);
  void check_size(const std::string& current, const std::string& name);
  static void end_word(Words& words, std::string& current, bool& has);

  ShellWordContext& context_;
  int depth_ = 0;
};

}  // namespace shardplan
