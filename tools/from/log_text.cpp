#include "tools/from/log_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "estimator/plan/units.h"
#include "tools/from/launcher_prefix.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Unit, 8> kUnits = {{{"bytes", 1},
                                         {"KiB", kKiB},
                                         {"MiB", kMiB},
                                         {"GiB", kGiB},
                                         // Written so before 2.1.
                                         {"KB", kKiB},
                                         {"MB", kMiB},
                                         {"GB", kGiB},
                                         {"B", 1}}};

// "2.00 GiB" at the start of the text.
std::optional<PrintedBytes> size_at(std::string_view text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{} || !(number >= 0 && number <= 1e9)) {
    return std::nullopt;
  }
  const auto length = static_cast<std::size_t>(read.ptr - text.data());
  const std::string_view digits = text.substr(0, length);
  std::string_view rest = text.substr(length);
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
  const auto unit =
      std::ranges::find_if(kUnits, [&](const Unit& row) { return rest.starts_with(row.name); });
  if (unit == kUnits.end()) {
    return std::nullopt;
  }
  const std::size_t point = digits.find('.');
  const auto decimals = point == std::string_view::npos ? 0 : digits.size() - point - 1;
  const double scale = static_cast<double>(unit->bytes);
  const double half =
      unit->bytes == 1 ? 0 : scale * std::pow(10.0, -static_cast<double>(decimals)) / 2;
  return PrintedBytes{.text = std::string(digits) + " " + std::string(unit->name),
                      .low = static_cast<std::int64_t>(std::ceil(number * scale - half)),
                      .high = static_cast<std::int64_t>(std::floor(number * scale + half))};
}

FoundWords place_at(std::string_view text, std::size_t begin, std::string_view words) {
  std::size_t at = begin;
  for (const char letter : words) {
    if (letter == ' ') {
      continue;
    }
    while (at < text.size() && text[at] == ' ') { ++at; }
    if (at == text.size() || text[at] != letter) {
      return {};
    }
    ++at;
  }
  return {.begin = begin, .end = at};
}

std::optional<std::int64_t> integer_at(std::string_view text) {
  std::int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  return read.ec == std::errc{} && value >= 0 && value < kMost ? std::optional(value)
                                                               : std::nullopt;
}

}  // namespace

bool is_digit(char letter) {
  return std::isdigit(static_cast<unsigned char>(letter)) != 0;
}

FoundWords find_words(std::string_view text, std::string_view words, std::size_t from) {
  const char first = words[words.find_first_not_of(' ')];
  for (std::size_t at = text.find(first, from); at != std::string_view::npos;
       at = text.find(first, at + 1)) {
    if (const FoundWords found = place_at(text, at, words)) {
      return found;
    }
  }
  return {};
}

std::optional<PrintedBytes> next_size(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return size_at(text);
}

std::optional<PrintedBytes> size_after(std::string_view text, std::string_view words) {
  const FoundWords found = find_words(text, words);
  return found ? next_size(text.substr(found.end)) : std::nullopt;
}

std::optional<PrintedBytes> size_before(std::string_view text, std::string_view words) {
  const FoundWords found = find_words(text, words);
  if (!found) {
    return std::nullopt;
  }
  std::size_t start = found.begin;
  const auto skip = [&](auto belongs) {
    while (start > 0 && belongs(text[start - 1])) { --start; }
  };
  const auto is_space = [](char letter) { return letter == ' '; };
  skip(is_space);
  skip([](char letter) { return std::isalpha(static_cast<unsigned char>(letter)) != 0; });
  skip(is_space);
  skip([](char letter) { return is_digit(letter) || letter == '.'; });
  return size_at(text.substr(start));
}

std::optional<std::int64_t> next_integer(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return integer_at(text);
}

std::optional<std::int64_t> integer_after(std::string_view text, std::string_view words) {
  const FoundWords found = find_words(text, words);
  return found ? next_integer(text.substr(found.end)) : std::nullopt;
}

std::optional<std::int64_t> rank_in(std::string_view before) {
  for (const std::string_view words : kRankTags) {
    const std::size_t found = before.rfind(words);
    if (found != std::string_view::npos) {
      if (const auto rank = integer_at(before.substr(found + words.size()))) {
        return rank;
      }
    }
  }
  const std::size_t start = std::min(before.size(), before.find_first_not_of(' '));
  const std::size_t colon = before.find(": ", start);
  const bool is_label = colon != std::string_view::npos && colon > start &&
                        std::all_of(before.begin() + static_cast<std::ptrdiff_t>(start),
                                    before.begin() + static_cast<std::ptrdiff_t>(colon), is_digit);
  return is_label ? integer_at(before.substr(start)) : std::nullopt;
}

std::string printed_bytes(std::int64_t bytes) {
  const double size = static_cast<double>(bytes);
  if (bytes <= kKiB) {
    return std::to_string(bytes) + " bytes";
  }
  if (bytes <= kMiB) {
    return fixed(size / static_cast<double>(kKiB), 2) + " KiB";
  }
  return bytes <= kGiB ? fixed(size / static_cast<double>(kMiB), 2) + " MiB"
                       : fixed(size / static_cast<double>(kGiB), 2) + " GiB";
}

}  // namespace shardplan
