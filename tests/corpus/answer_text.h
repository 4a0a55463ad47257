// Text of an answer: lines of words, integers and doubles to their last bit.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace shardplan {

class AnswerText {
 public:
  AnswerText& add(std::string_view word) {
    text_ += word;
    text_ += ' ';
    return *this;
  }
  AnswerText& add(std::integral auto value) {
    if constexpr (std::is_same_v<decltype(value), bool>) {
      return add(std::string_view(value ? "true" : "false"));
    } else {
      std::array<char, 32> digits{};
      const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
      return add(std::string_view(digits.begin(), end));
    }
  }
  // In hexadecimal: no digit is rounded away.
  AnswerText& add(double number) {
    std::array<char, 40> digits{};
    const auto end =
        std::to_chars(digits.begin(), digits.end(), number, std::chars_format::hex).ptr;
    return add(std::string_view(digits.begin(), end));
  }
  template <class Value>
  AnswerText& add(const std::vector<Value>& values) {
    add(std::string_view("["));
    for (const Value& value : values) { add(value); }
    return add(std::string_view("]"));
  }
  template <class Value>
  AnswerText& add(std::string_view name, const Value& value) {
    return add(name).add(value);
  }
  void end_line() {
    if (!text_.empty() && text_.back() == ' ') {
      text_.pop_back();
    }
    text_ += '\n';
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace shardplan
