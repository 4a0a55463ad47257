// The values of options: counts, sizes, numbers, lists and words.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "data/json_message.h"
#include "estimator/units.h"
#include "tools/options.h"
#include "tools/text.h"

namespace shardplan {
namespace {

InputError wrong(const std::string& place, const std::string& found, const std::string& expected) {
  return InputError(place + ": found '" + found + "', expected " + expected);
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

// The digits and the suffix of a word like 4k; nothing if it does not start with an integer.
struct Amount {
  double number = 0;
  bool whole = false;  // digits only: `count` is exact
  std::int64_t count = 0;
  std::string_view suffix;
};

std::optional<Amount> split_amount(std::string_view word) {
  Amount amount;
  const std::size_t length = std::min(word.size(), word.find_first_not_of("0123456789."));
  const std::string_view digits = word.substr(0, length);
  amount.suffix = word.substr(length);
  const char* end = digits.data() + digits.size();
  const auto number = std::from_chars(digits.data(), end, amount.number);
  const auto count = std::from_chars(digits.data(), end, amount.count);
  amount.whole = count.ec == std::errc() && count.ptr == end;
  if (digits.empty() || number.ec != std::errc() || number.ptr != end) {
    return std::nullopt;
  }
  return amount;
}

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<Suffix, 7> kCountSuffixes = {{
    {.name = "", .factor = 1},
    {.name = "k", .factor = kKiB},
    {.name = "K", .factor = kKiB},
    {.name = "Ki", .factor = kKiB},
    {.name = "m", .factor = kMiB},
    {.name = "M", .factor = kMiB},
    {.name = "Mi", .factor = kMiB},
}};

constexpr std::array<Suffix, 8> kByteSuffixes = {{
    {.name = "", .factor = 1},
    {.name = "B", .factor = 1},
    {.name = "MiB", .factor = kMiB},
    {.name = "GiB", .factor = kGiB},
    {.name = "TiB", .factor = kGiB * 1024},
    {.name = "MB", .factor = 1'000'000},
    {.name = "GB", .factor = 1'000'000'000},
    {.name = "TB", .factor = 1'000'000'000'000},
}};

template <std::size_t n>
const Suffix* find_suffix(const std::array<Suffix, n>& suffixes, std::string_view name) {
  for (const Suffix& suffix : suffixes) {
    if (suffix.name == name) {
      return &suffix;
    }
  }
  return nullptr;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes % kGiB == 0) {
    return std::to_string(bytes / kGiB) + "GiB";
  }
  return std::to_string(bytes);
}

}  // namespace

std::int64_t parse_count(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place) {
  const std::optional<Amount> amount = split_amount(word);
  const Suffix* suffix = amount ? find_suffix(kCountSuffixes, amount->suffix) : nullptr;
  std::int64_t value = 0;
  if (suffix == nullptr || !amount->whole ||
      __builtin_mul_overflow(amount->count, suffix->factor, &value) || value < low ||
      value > high) {
    throw wrong(place, word, range_text(low, high));
  }
  return value;
}

std::int64_t parse_bytes(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place) {
  const std::optional<Amount> amount = split_amount(word);
  const Suffix* suffix = amount ? find_suffix(kByteSuffixes, amount->suffix) : nullptr;
  const double bytes =
      suffix == nullptr ? -1 : amount->number * static_cast<double>(suffix->factor);
  if (!(bytes >= static_cast<double>(low) && bytes <= static_cast<double>(high))) {
    throw wrong(
        place, word,
        "bytes from " + bytes_text(low) + " to " + bytes_text(high) + ", such as 80GiB or 80GB");
  }
  return std::llround(bytes);
}

double parse_number(const std::string& word, double low, double high, const std::string& place) {
  constexpr double kUnbounded = 1e18;  // a limit so high bounds no question
  double value = 0;
  const char* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(value >= low && value <= high)) {
    throw wrong(place, word,
                high < kUnbounded ? "a number from " + shortest(low) + " to " + shortest(high)
                                  : "a number >= " + shortest(low));
  }
  return value;
}

std::vector<std::string> parse_list(const std::string& word, const std::string& place) {
  std::vector<std::string> pieces;
  std::size_t start = 0;
  while (true) {
    const std::size_t comma = word.find(',', start);
    pieces.push_back(word.substr(start, comma - start));
    if (pieces.back().empty()) {
      throw wrong(place, word, "words separated by single commas");
    }
    if (comma == std::string::npos) {
      return pieces;
    }
    start = comma + 1;
  }
}

std::string parse_choice(const std::string& word, const std::vector<std::string>& choices,
                         const std::string& place) {
  std::string normal = word;
  std::replace(normal.begin(), normal.end(), '-', '_');
  if (std::find(choices.begin(), choices.end(), normal) != choices.end()) {
    return normal;
  }
  std::string expected;
  for (const std::string& choice : choices) {
    expected += (expected.empty() ? "" : " | ") + choice;
  }
  throw wrong(place, word, expected + suggestion(word, choices));
}

}  // namespace shardplan
