// Ids and handles pass through the store of a run as text.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardplan {

template <class T>
std::string hex_of(const T& value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    text += kDigits[bytes[i] / 16U];
    text += kDigits[bytes[i] % 16U];
  }
  return text;
}

template <class T>
T from_hex(const std::string& text) {
  if (text.size() != 2 * sizeof(T)) {
    throw std::runtime_error("an id or handle of " + std::to_string(text.size()) + " digits");
  }
  T value;
  auto* bytes = reinterpret_cast<unsigned char*>(&value);
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<unsigned char>(16 * digit(text[2 * i]) + digit(text[2 * i + 1]));
  }
  return value;
}

}  // namespace shardplan
