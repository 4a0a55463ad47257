#include "tools/report/text.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

std::string spaces(std::int64_t count) {
  return count > 0 ? std::string(static_cast<std::size_t>(count), ' ') : "";
}

}  // namespace

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string whole(double value) {
  return grouped(std::llround(value));
}

std::string fixed(double value, int decimals) {
  std::array<char, 400> buffer{};  // the largest double has 309 digits before the point
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  const std::string text(buffer.data(), static_cast<std::size_t>(length));
  const bool is_zero = text.find_first_not_of("-0.") == std::string::npos;
  return is_zero && text.starts_with("-") ? text.substr(1) : text;
}

std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%g", value);
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

std::string gib(std::int64_t bytes) {
  return fixed(static_cast<double>(bytes) / static_cast<double>(kGiB), 2);
}

std::string percent(double share) {
  const double value = share * 100;
  const bool is_whole = fixed(value, 1).ends_with(".0");
  return fixed(value, is_whole ? 0 : 1) + " %";
}

std::string signed_percent(double share) {
  const std::string text = fixed(share * 100, 2) + " %";
  return share > 0 && text != "0.00 %" ? "+" + text : text;
}

std::string range_of(const std::string& low, const std::string& high) {
  return low == high ? low : low + " to " + high;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x20 && code != 0x7f) {
      line += letter;
      continue;
    }
    std::array<char, 8> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned>(code));
    line += escaped.data();
  }
  return line;
}

std::int64_t display_width(std::string_view text) {
  std::int64_t width = 0;
  for (const char letter : text) {
    const bool continues = (static_cast<unsigned char>(letter) & 0xC0) == 0x80;
    width += continues ? 0 : 1;
  }
  return width;
}

std::string padded_left(std::string_view text, std::int64_t width) {
  return spaces(width - display_width(text)) + std::string(text);
}

std::string padded_right(std::string_view text, std::int64_t width) {
  return std::string(text) + spaces(width - display_width(text));
}

}  // namespace shardplan
