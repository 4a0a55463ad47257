#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "tools/shell_words.h"

namespace shardplan {
namespace {

bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

class Arithmetic {
 public:
  Arithmetic(const std::string& text, const ShellValues& values) : text_(text), values_(values) {}

  std::optional<std::int64_t> whole() {
    const std::int64_t value = choice();
    skip();
    return good_ && at_ == text_.size() ? std::optional(value) : std::nullopt;
  }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '$')) { ++at_; }
  }
  bool take_word(std::string_view word) {
    skip();
    const bool found = text_.compare(at_, word.size(), word) == 0;
    at_ += found ? word.size() : 0;
    return found;
  }
  bool take(char letter) {
    skip();
    const bool found = at_ < text_.size() && text_[at_] == letter;
    at_ += found ? 1 : 0;
    return found;
  }
  std::int64_t parse(const std::string& word) {
    std::int64_t value = 0;
    const char* const end = word.data() + word.size();
    const std::from_chars_result read = std::from_chars(word.data(), end, value);
    good_ = good_ && !word.empty() && read.ec == std::errc{} && read.ptr == end;
    return value;
  }
  std::int64_t atom() {
    if (depth_ > 32) {
      good_ = false;
      return 0;
    }
    if (take('(') || take('{')) {
      ++depth_;
      const std::int64_t value = choice();
      --depth_;
      good_ = (take(')') || take('}')) && good_;
      return value;
    }
    skip();
    std::size_t end = at_;
    while (end < text_.size() && is_name_letter(text_[end])) { ++end; }
    const std::string word = text_.substr(at_, end - at_);
    const bool is_digits =
        !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) != 0;
    const bool is_number = is_digits && (at_ == 0 || text_[at_ - 1] != '$');  // "$1" is none
    at_ = end;
    const auto known = is_number ? values_.end() : values_.find(word);
    return parse(known == values_.end() || known->second.empty() ? word : known->second.front());
  }
  std::int64_t product() {
    std::int64_t value = atom();
    while (good_) {
      if (take('*')) {
        good_ = !__builtin_mul_overflow(value, atom(), &value) && good_;
      } else if (take('/')) {
        const std::int64_t by = atom();
        good_ = good_ && by > 0;
        value = by > 0 ? value / by : 0;
      } else if (take('%')) {
        const std::int64_t by = atom();
        good_ = good_ && by > 0;
        value = by > 0 ? value % by : 0;
      } else {
        break;
      }
    }
    return value;
  }
  std::int64_t sum() {
    std::int64_t value = product();
    while (good_) {
      if (take('+')) {
        good_ = !__builtin_add_overflow(value, product(), &value) && good_;
      } else if (take('-')) {
        good_ = !__builtin_sub_overflow(value, product(), &value) && good_;
      } else {
        break;
      }
    }
    return value;
  }

  std::int64_t comparison() {
    const std::int64_t left = sum();
    struct Operator {
      std::string_view word;
      bool (*holds)(std::int64_t, std::int64_t);
    };
    static constexpr std::array<Operator, 6> kOperators = {{
        {.word = "==", .holds = [](std::int64_t a, std::int64_t b) { return a == b; }},
        {.word = "!=", .holds = [](std::int64_t a, std::int64_t b) { return a != b; }},
        {.word = "<=", .holds = [](std::int64_t a, std::int64_t b) { return a <= b; }},
        {.word = ">=", .holds = [](std::int64_t a, std::int64_t b) { return a >= b; }},
        {.word = "<", .holds = [](std::int64_t a, std::int64_t b) { return a < b; }},
        {.word = ">", .holds = [](std::int64_t a, std::int64_t b) { return a > b; }},
    }};
    for (const Operator& each : kOperators) {
      if (take_word(each.word)) {
        return each.holds(left, sum()) ? 1 : 0;
      }
    }
    return left;
  }
  std::int64_t both() {
    std::int64_t value = comparison();
    while (good_ && take_word("&&")) {
      const std::int64_t right = comparison();
      value = value != 0 && right != 0 ? 1 : 0;
    }
    return value;
  }
  std::int64_t either() {
    std::int64_t value = both();
    while (good_ && take_word("||")) {
      const std::int64_t right = both();
      value = value != 0 || right != 0 ? 1 : 0;
    }
    return value;
  }
  std::int64_t choice() {
    const std::int64_t condition = either();
    if (!good_ || !take('?')) {
      return condition;
    }
    const std::int64_t yes = either();
    good_ = take(':') && good_;
    const std::int64_t no = either();
    return condition != 0 ? yes : no;
  }

  const std::string& text_;
  const ShellValues& values_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool good_ = true;
};

}  // namespace

std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellValues& values) {
  return Arithmetic(text, values).whole();
}

}  // namespace shardplan
