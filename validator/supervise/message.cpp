#include "validator/supervise/message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

namespace shardplan {
namespace {

std::string escaped(const std::string& value) {
  std::string text;
  for (const char letter : value) {
    switch (letter) {
      case '\\': text += "\\\\"; break;
      case '\t': text += "\\t"; break;
      case '\n': text += "\\n"; break;
      default: text += letter;
    }
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    if (++i == text.size()) {
      throw std::invalid_argument("message: ends within an escape");
    }
    value += text[i] == 't' ? '\t' : text[i] == 'n' ? '\n' : text[i];
  }
  return value;
}

template <class Number>
Number number_of(std::string_view text, std::string_view name) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument("message: " + std::string(name) + ": found '" + std::string(text) +
                                "', expected a number");
  }
  return number;
}

}  // namespace

Message::Message(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t tab = std::min(text.find('\t', begin), text.size());
    const std::string_view field = std::string_view(text).substr(begin, tab - begin);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) {
      throw std::invalid_argument("message: a field without a value");
    }
    fields_.emplace_back(field.substr(0, equals), unescaped(field.substr(equals + 1)));
    begin = tab + 1;
  }
}

void Message::add(std::string_view name, const std::string& value) {
  fields_.emplace_back(name, value);
}

void Message::add(std::string_view name, std::int64_t value) {
  add(name, std::to_string(value));
}

void Message::add(std::string_view name, const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    std::array<char, 32> digits{};
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    if (!text.empty()) {
      text += ',';
    }
    text.append(digits.data(), end);
  }
  add(name, text);
}

std::string Message::text() const {
  std::string text;
  for (const auto& [name, value] : fields_) {
    if (!text.empty()) {
      text += '\t';
    }
    text.append(name).append("=").append(escaped(value));
  }
  return text;
}

bool Message::has(std::string_view name) const {
  for (const auto& field : fields_) {
    if (field.first == name) {
      return true;
    }
  }
  return false;
}

const std::string& Message::word(std::string_view name) const {
  for (const auto& field : fields_) {
    if (field.first == name) {
      return field.second;
    }
  }
  throw std::invalid_argument("message: no field " + std::string(name));
}

std::int64_t Message::integer(std::string_view name) const {
  return number_of<std::int64_t>(word(name), name);
}

double Message::number(std::string_view name) const {
  return number_of<double>(word(name), name);
}

std::vector<double> Message::numbers(std::string_view name) const {
  const std::string& text = word(name);
  std::vector<double> values;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    values.push_back(number_of<double>(std::string_view(text).substr(begin, comma - begin), name));
    begin = comma + 1;
  }
  return values;
}

}  // namespace shardplan
