#include "tools/from/yaml_scalar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

namespace shardplan {
namespace {

constexpr std::string_view kDigits = "0123456789";

bool is_of(std::string_view text, std::string_view letters) {
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

std::optional<std::int64_t> integer_of(std::string_view digits, int base) {
  std::int64_t value = 0;
  const auto [end, problem] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  const bool is_whole = problem == std::errc() && end == digits.data() + digits.size();
  return is_whole && !digits.empty() ? std::optional(value) : std::nullopt;
}

// 1:30 is 90: digits of base 60, of which only the first may have more than two.
std::optional<std::int64_t> sexagesimal_of(std::string_view text) {
  constexpr std::int64_t kBase = 60;
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t value = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::optional<std::int64_t> digits = integer_of(part, 10);
    const bool is_later = begin > 0;
    const bool is_later_wrong = is_later && (part.size() > 2 || digits.value_or(0) >= kBase);
    if (!is_of(part, kDigits) || !digits || is_later_wrong || value > kMost) {
      return std::nullopt;
    }
    value = value * kBase + *digits;
    begin = end + 1;
  }
  return value;
}

std::optional<std::int64_t> unsigned_of(const std::string& text) {
  std::string bare = text;
  std::erase(bare, '_');
  if (text.starts_with("0b")) {
    return integer_of(std::string_view(bare).substr(2), 2);
  }
  if (text.starts_with("0x")) {
    return integer_of(std::string_view(bare).substr(2), 16);
  }
  if (!text.starts_with('_') && is_of(bare, kDigits)) {
    const bool is_octal = bare.size() > 1 && bare.front() == '0';
    return is_octal ? integer_of(bare, 8) : integer_of(bare, 10);
  }
  const bool is_sexagesimal =
      bare.find(':') != std::string::npos && bare.front() != '0' && bare.front() != ':';
  return is_sexagesimal ? sexagesimal_of(bare) : std::nullopt;
}

std::optional<std::string> integer_text(const std::string& plain) {
  const bool has_sign = plain.starts_with('-') || plain.starts_with('+');
  const std::optional<std::int64_t> value = unsigned_of(plain.substr(has_sign ? 1 : 0));
  if (!value) {
    return std::nullopt;
  }
  return std::to_string(plain.starts_with('-') ? -*value : *value);
}

bool is_word(const std::string& plain, const std::array<std::string_view, 9>& words) {
  return std::ranges::find(words, plain) != words.end();
}
constexpr std::array<std::string_view, 9> kTrue = {"yes",  "Yes", "YES", "true", "True",
                                                   "TRUE", "on",  "On",  "ON"};
constexpr std::array<std::string_view, 9> kFalse = {"no",    "No",  "NO",  "false", "False",
                                                    "FALSE", "off", "Off", "OFF"};

// 1_000.5; the exponent has a sign, and a dot in front.
bool is_float_with_underscores(const std::string& plain) {
  const std::size_t sign = plain.find_first_of("+-") == 0 ? 1 : 0;
  return plain.find('_') != std::string::npos && plain.find('.') != std::string::npos &&
         plain.size() > sign && kDigits.find(plain[sign]) != std::string_view::npos &&
         is_of(plain.substr(sign), "0123456789_.eE+-");
}

}  // namespace

std::string as_pyyaml_reads(const std::string& plain) {
  if (is_word(plain, kTrue)) {
    return "true";
  }
  if (is_word(plain, kFalse)) {
    return "false";
  }
  if (std::optional<std::string> integer = integer_text(plain)) {
    return *integer;
  }
  if (is_float_with_underscores(plain)) {
    std::string bare = plain;
    std::erase(bare, '_');
    return bare;
  }
  return plain;
}

}  // namespace shardplan
