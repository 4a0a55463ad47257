// Arithmetic of a shell, which is C's: an expression is climbed by the levels of its operators.
#include "tools/from/shell/arithmetic.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string_view>
#include <utility>

#include "tools/from/shell/list.h"
#include "tools/from/shell/word_reader.h"

namespace shardplan {
namespace {

constexpr int kDeepest = 32;            // variables that hold expressions, parentheses
constexpr int kMostOperands = 1 << 12;  // A='A+A' would have 2^32

struct Operator {
  std::string_view word;
  int level;  // higher ones bind closer
};

// Longer ones first.
constexpr std::array<Operator, 19> kOperators = {{
    {.word = "**", .level = 11}, {.word = "<<", .level = 8}, {.word = ">>", .level = 8},
    {.word = "<=", .level = 7},  {.word = ">=", .level = 7}, {.word = "==", .level = 6},
    {.word = "!=", .level = 6},  {.word = "&&", .level = 2}, {.word = "||", .level = 1},
    {.word = "*", .level = 10},  {.word = "/", .level = 10}, {.word = "%", .level = 10},
    {.word = "+", .level = 9},   {.word = "-", .level = 9},  {.word = "<", .level = 7},
    {.word = ">", .level = 7},   {.word = "&", .level = 5},  {.word = "^", .level = 4},
    {.word = "|", .level = 3},
}};
constexpr std::array<std::string_view, 10> kAssigning = {"<<", ">>", "*", "/", "%",
                                                         "+",  "-",  "&", "^", "|"};

using Value = std::optional<std::int64_t>;  // nothing: not known

Value power(std::int64_t base, std::int64_t exponent) {
  std::int64_t value = 1;
  if (exponent < 0 || exponent > 64) {
    return std::nullopt;
  }
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(value, base, &value)) {
      return std::nullopt;
    }
  }
  return value;
}

// Nothing for what a shell refuses, and for what runs over.
Value of_known(std::string_view word, std::int64_t a, std::int64_t b) {
  std::int64_t value = 0;
  const bool divides = word == "/" || word == "%";
  const bool shifts = word == "<<" || word == ">>";
  if ((divides && (b == 0 || b == -1)) || (shifts && (b < 0 || b > 62))) {
    return divides && b == -1 ? of_known("-", 0, word == "/" ? a : 0) : std::nullopt;
  }
  if ((word == "*" && __builtin_mul_overflow(a, b, &value)) ||
      (word == "+" && __builtin_add_overflow(a, b, &value)) ||
      (word == "-" && __builtin_sub_overflow(a, b, &value))) {
    return std::nullopt;
  }
  return word == "**"                                ? power(a, b)
         : word == "*" || word == "+" || word == "-" ? value
         : word == "/"                               ? a / b
         : word == "%"                               ? a % b
         : word == "<<"                              ? a << b
         : word == ">>"                              ? a >> b
         : word == "<="                              ? a <= b
         : word == ">="                              ? a >= b
         : word == "<"                               ? a < b
         : word == ">"                               ? a > b
         : word == "=="                              ? a == b
         : word == "!="                              ? a != b
         : word == "&"                               ? a & b
         : word == "^"                               ? a ^ b
                                                     : a | b;
}

Value applied(std::string_view word, const Value& left, const Value& right) {
  if (word == "&&" || word == "||") {
    const std::int64_t decisive = word == "||" ? 1 : 0;
    const auto decides = [&](const Value& side) { return side && (*side != 0) == (word == "||"); };
    return decides(left) || decides(right) ? Value(decisive)
           : left && right                 ? Value(1 - decisive)
                                           : std::nullopt;
  }
  return left && right ? of_known(word, *left, *right) : std::nullopt;
}

// 12, 0x1f, 017, 2#101.
Value number(const std::string& word) {
  const std::size_t mark = word.find('#');
  const bool is_hex = word.starts_with("0x") || word.starts_with("0X");
  int base = is_hex ? 16 : word.size() > 1 && word.front() == '0' ? 8 : 10;
  std::size_t begin = is_hex ? 2 : 0;
  if (mark != std::string::npos) {
    const std::from_chars_result read = std::from_chars(word.data(), word.data() + mark, base);
    if (read.ec != std::errc{} || base < 2 || base > 36) {
      return std::nullopt;
    }
    begin = mark + 1;
  }
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const std::from_chars_result read = std::from_chars(word.data() + begin, end, value, base);
  return read.ec == std::errc{} && read.ptr == end ? Value(value) : std::nullopt;
}

class Arithmetic {
 public:
  // `operands`: how many have been read, over all variables that hold expressions.
  Arithmetic(const std::string& text, const ShellValues& values, const ShellAssign& assign,
             int depth, int& operands)
      : text_(text), values_(values), assign_(assign), operands_(operands), depth_(depth) {}

  ShellNumber whole() {
    const Value value = list();
    skip();
    return {.value = good_ && at_ == text_.size() ? value : std::nullopt,
            .is_deep = is_deep_,
            .operands = operands_};
  }

 private:
  enum class Runs { kNo, kPerhaps, kYes };  // whether what is read is evaluated

  void skip() { at_ = std::min(text_.find_first_not_of(" \t\r\n\"", at_), text_.size()); }
  bool begins(std::string_view word) const { return text_.compare(at_, word.size(), word) == 0; }
  bool take(std::string_view word) {
    skip();
    const bool found = begins(word);
    at_ += found ? word.size() : 0;
    return found;
  }
  bool is_name() const {
    return at_ < text_.size() && is_name_letter(text_[at_]) &&
           std::isdigit(static_cast<unsigned char>(text_[at_])) == 0;
  }
  std::string letters(std::string_view others = "") {
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (is_name_letter(text_[at_]) || others.find(text_[at_]) != others.npos)) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  // What `read` reads within what is being read.
  template <class Read>
  Value within(Read read) {
    if (depth_ == kDeepest) {
      is_deep_ = true;
      good_ = false;
    }
    ++depth_;
    const Value value = good_ ? read() : std::nullopt;
    --depth_;
    return value;
  }

  // What `read` reads, where it is evaluated only if `condition` is `needed`.
  template <class Read>
  Value where(const Value& condition, bool needed, Read read) {
    const Runs own = !condition                    ? Runs::kPerhaps
                     : (*condition != 0) == needed ? Runs::kYes
                                                   : Runs::kNo;
    const Runs outer = std::exchange(runs_, std::min(runs_, own));
    const Value value = read();
    runs_ = outer;
    return value;
  }

  Value list() {
    Value value = choice();
    while (good_ && take(",")) { value = choice(); }
    return value;
  }
  Value choice() {
    const Value condition = binary(1);
    if (!good_ || !take("?")) {
      return condition;
    }
    const auto part = [&](bool needed) {
      return where(condition, needed,
                   [&] { return within([&] { return needed ? list() : choice(); }); });
    };
    const Value yes = part(true);
    good_ = take(":") && good_;
    const Value no = part(false);
    return !condition ? std::nullopt : *condition != 0 ? yes : no;
  }
  Value binary(int level) {
    Value left = unary();
    while (good_) {
      skip();
      const auto* const next =
          std::ranges::find_if(kOperators, [&](const Operator& each) { return begins(each.word); });
      if (next == kOperators.end() || next->level < level) {
        return left;
      }
      at_ += next->word.size();
      const bool is_power = next->word == "**";  // 2**3**2 is 2**(3**2)
      const auto right = [&] {
        return is_power ? within([&] { return binary(next->level); }) : binary(next->level + 1);
      };
      const bool both = next->word == "&&";
      left = applied(next->word, left,
                     both || next->word == "||" ? where(left, both, right) : right());
    }
    return left;
  }
  Value unary() {
    good_ = good_ && ++operands_ <= kMostOperands;
    return within([&] { return operand(); });
  }
  Value operand() {
    skip();
    for (const std::string_view step : {"++", "--"}) {
      const std::size_t begin = at_;
      if (take(step)) {
        skip();
        if (is_name()) {
          const std::string name = variable_name();
          return set(name, applied(step.substr(0, 1), value_of(name), 1));
        }
        at_ = begin;  // two signs
      }
    }
    if (take("!")) {
      return applied("==", unary(), 0);
    }
    if (take("~")) {
      return applied("^", unary(), -1);
    }
    if (take("-")) {
      return applied("-", 0, unary());
    }
    if (take("+")) {
      return unary();
    }
    if (take("(")) {
      const Value value = list();
      good_ = take(")") && good_;
      return value;
    }
    if (is_name()) {
      return variable();
    }
    if (at_ < text_.size() && is_mark(text_[at_])) {
      at_ = std::min(text_.find(kEndMark, at_), text_.size() - 1) + 1;
      return std::nullopt;
    }
    const std::string word = letters("#@");
    const Value value = number(word);
    good_ = good_ && value;
    return value;
  }

  // NAME, NAME++, NAME = value, NAME += value.
  Value variable() {
    const std::string name = variable_name();
    skip();
    for (const std::string_view step : {"++", "--"}) {
      if (take(step)) {
        const Value old = value_of(name);
        set(name, applied(step.substr(0, 1), old, 1));
        return old;
      }
    }
    if (begins("=") && !begins("==")) {
      ++at_;
      return set(name, choice());
    }
    for (const std::string_view word : kAssigning) {
      if (begins(word) && text_.compare(at_ + word.size(), 1, "=") == 0) {
        at_ += word.size() + 1;
        const Value old = value_of(name);
        return set(name, applied(word, old, choice()));
      }
    }
    return value_of(name);
  }
  std::string variable_name() {
    std::string name = letters();
    if (at_ < text_.size() && text_[at_] == '[') {
      const std::size_t end = std::min(text_.find(']', at_), text_.size());
      const std::string key = text_.substr(at_ + 1, end - at_ - 1);
      at_ = std::min(end + 1, text_.size());
      const Value index = list_entry(values_, name, key) != nullptr ? std::nullopt : inner(key);
      name += "[" + (index ? std::to_string(*index) : key) + "]";
    }
    return name;
  }
  Value value_of(const std::string& name) const {
    const std::string list = list_of(name);
    if (list != name) {
      const std::string* const entry =
          list_entry(values_, list, name.substr(list.size() + 1, name.size() - list.size() - 2));
      return entry != nullptr ? inner(*entry) : std::nullopt;
    }
    const auto found = values_.find(name);
    return found == values_.end() || found->second.empty() ? std::nullopt
                                                           : inner(found->second.front());
  }
  Value inner(const std::string& expression) const {
    return depth_ < kDeepest
               ? Arithmetic(expression, values_, {}, depth_ + 1, operands_).whole().value
               : std::nullopt;
  }
  Value set(const std::string& name, const Value& value) {
    if (assign_ && runs_ != Runs::kNo) {
      assign_(name, runs_ == Runs::kYes ? value : std::nullopt);
    }
    return value;
  }

  const std::string& text_;
  const ShellValues& values_;
  const ShellAssign& assign_;
  int& operands_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool good_ = true;
  bool is_deep_ = false;
  Runs runs_ = Runs::kYes;
};

}  // namespace

bool is_short_range(std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kMost = 1024;
  std::int64_t length = 0;
  return !__builtin_sub_overflow(std::max(first, last), std::min(first, last), &length) &&
         length <= kMost;
}

ShellNumber shell_number(const std::string& text, const ShellValues& values,
                         const ShellAssign& assign) {
  int operands = 0;
  return Arithmetic(text, values, assign, 0, operands).whole();
}

std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellValues& values,
                                             const ShellAssign& assign) {
  return shell_number(text, values, assign).value;
}

}  // namespace shardplan
