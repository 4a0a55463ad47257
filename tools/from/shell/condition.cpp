#include "tools/from/shell/condition.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <regex>
#include <string_view>

#include "tools/from/shell/word_reader.h"

namespace shardplan {
namespace {

std::optional<std::int64_t> integer_of(const std::string& word) {
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const std::from_chars_result read = std::from_chars(word.data(), end, value);
  return !word.empty() && read.ec == std::errc{} && read.ptr == end ? std::optional(value)
                                                                    : std::nullopt;
}

Truth truth_of(bool holds) {
  return holds ? Truth::kTrue : Truth::kFalse;
}

const std::vector<std::string> kComparisons = {"=",   "==",  "!=",  "=~",  "<",   ">",
                                               "-eq", "-ne", "-lt", "-le", "-gt", "-ge"};

bool is_comparison(const std::string& word) {
  return std::ranges::find(kComparisons, word) != kComparisons.end();
}

Truth compared_numbers(const std::string& comparison, const std::string& left,
                       const std::string& right) {
  const std::optional<std::int64_t> a = integer_of(left);
  const std::optional<std::int64_t> b = integer_of(right);
  if (!a || !b) {
    return Truth::kFalse;  // a shell complains, and goes on
  }
  return truth_of(comparison == "-eq"   ? *a == *b
                  : comparison == "-ne" ? *a != *b
                  : comparison == "-lt" ? *a < *b
                  : comparison == "-le" ? *a <= *b
                  : comparison == "-gt" ? *a > *b
                                        : *a >= *b);
}

Truth matches_regex(const std::string& text, const std::string& pattern) {
  constexpr std::size_t kLongest = 1024;
  // Without tries that grow by powers, as "(a*)*b" has them; patterns with "\\1" are refused then.
  constexpr auto kSyntax = std::regex::extended | std::regex_constants::__polynomial;
  if (text.size() > kLongest || pattern.size() > kLongest) {
    return Truth::kUnknown;
  }
  try {
    return truth_of(std::regex_search(text, std::regex(pattern, kSyntax)));
  } catch (const std::regex_error&) { return Truth::kUnknown; }
}

Truth compared(const std::string& comparison, const std::string& left, const std::string& right) {
  if (comparison == "=~") {
    return matches_regex(left, right);
  }
  if (comparison.starts_with('-')) {
    return compared_numbers(comparison, left, right);
  }
  if (comparison == "<" || comparison == ">") {
    return truth_of(comparison == "<" ? left < right : left > right);
  }
  return truth_of(matches_pattern(left, right) == (comparison != "!="));
}

class Condition {
 public:
  explicit Condition(const std::vector<std::string>& words) : words_(words) {}

  ShellTruth whole() {
    const ShellTruth result = either();
    return at_ == words_.size() ? result : ShellTruth{};
  }

 private:
  bool take(std::string_view word, std::string_view other) {
    const bool found = at_ < words_.size() && (words_[at_] == word || words_[at_] == other);
    at_ += found ? 1 : 0;
    return found;
  }

  // What decides the result: `decisive` by any part that has it, else all parts.
  static ShellTruth joined(const ShellTruth& left, const ShellTruth& right, Truth decisive) {
    if (left.truth == decisive) {
      return left;
    }
    if (right.truth == decisive) {
      return right;
    }
    ShellTruth both = left;
    both.truth = left.truth == Truth::kUnknown ? left.truth : right.truth;
    both.missing.insert(right.missing.begin(), right.missing.end());
    return both;
  }
  ShellTruth either() {
    ShellTruth left = both();
    while (take("||", "-o")) { left = joined(left, both(), Truth::kTrue); }
    return left;
  }
  ShellTruth both() {
    ShellTruth left = opposite();
    while (take("&&", "-a")) { left = joined(left, opposite(), Truth::kFalse); }
    return left;
  }
  ShellTruth opposite() {
    constexpr int kDeepest = 64;
    if (++depth_ > kDeepest) {
      at_ = words_.size() + 1;
      return {};
    }
    ShellTruth result;
    if (take("!", "!")) {
      result = opposite();
      result.truth = negated(result.truth);
    } else if (take("(", "\\(")) {
      result = either();
      take(")", "\\)");
    } else {
      result = single();
    }
    --depth_;
    return result;
  }

  ShellTruth single() {
    const std::size_t left = words_.size() - std::min(at_, words_.size());
    if (left >= 3 && is_comparison(words_[at_ + 1])) {
      const KnownWord a = known_word(words_[at_]);
      const KnownWord b = known_word(words_[at_ + 2]);
      const std::string comparison = words_[at_ + 1];
      at_ += 3;
      ShellTruth result{.truth = compared(comparison, a.text, b.text), .missing = a.missing};
      result.missing.insert(b.missing.begin(), b.missing.end());
      return a.unknown || b.unknown ? ShellTruth{} : result;
    }
    if (left >= 2 && words_[at_].size() == 2 && words_[at_].front() == '-') {
      const char operation = words_[at_][1];
      const KnownWord word = known_word(words_[at_ + 1]);
      at_ += 2;
      if ((operation != 'z' && operation != 'n') || word.unknown) {
        return {};
      }
      return {.truth = truth_of(word.text.empty() == (operation == 'z')), .missing = word.missing};
    }
    if (left >= 1) {
      const KnownWord word = known_word(words_[at_]);
      at_ += 1;
      return word.unknown
                 ? ShellTruth{}
                 : ShellTruth{.truth = truth_of(!word.text.empty()), .missing = word.missing};
    }
    return {.truth = Truth::kFalse};
  }

  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool compares_numbers(const std::string& word) {
  return is_comparison(word) && word.starts_with('-');
}

Truth negated(Truth truth) {
  return truth == Truth::kUnknown ? truth : truth_of(truth == Truth::kFalse);
}

bool matches_pattern(const std::string& text, const std::string& pattern) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

ShellTruth shell_condition(const std::vector<std::string>& words) {
  return Condition(words).whole();
}

}  // namespace shardplan
