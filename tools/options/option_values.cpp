#include "tools/options/option_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "data/read/count_word.h"
#include "data/read/json_message.h"
#include "data/read/library.h"
#include "estimator/plan/units.h"
#include "tools/options/options.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

InputError wrong(const std::string& place, const std::string& found, const std::string& expected) {
  return InputError(place + ": found '" + found + "', expected " + expected);
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

struct ByteUnit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<ByteUnit, 8> kByteUnits = {{
    {.name = "", .factor = 1},
    {.name = "B", .factor = 1},
    {.name = "MiB", .factor = kMiB},
    {.name = "GiB", .factor = kGiB},
    {.name = "TiB", .factor = kGiB * 1024},
    {.name = "MB", .factor = 1'000'000},
    {.name = "GB", .factor = 1'000'000'000},
    {.name = "TB", .factor = 1'000'000'000'000},
}};

// Bytes of a word like 80GiB; nothing without a number in front or with another unit.
std::optional<double> bytes_of_word(std::string_view word) {
  const std::size_t length = std::min(word.size(), word.find_first_not_of("0123456789."));
  const std::size_t start = std::min(word.find_first_not_of(' ', length), word.size());
  const auto* const unit = std::ranges::find_if(kByteUnits, [&](const ByteUnit& each) {
    return word.substr(start) == each.name || word.substr(start) == in_lower_case(each.name);
  });
  const char* const end = word.data() + length;
  double number = 0;
  const auto read = std::from_chars(word.data(), end, number);
  if (unit == kByteUnits.end() || read.ec != std::errc() || read.ptr != end) {
    return std::nullopt;
  }
  return number * static_cast<double>(unit->factor);
}

std::string bytes_text(std::int64_t bytes) {
  return bytes % kGiB == 0 ? std::to_string(bytes / kGiB) + "GiB"
                           : std::to_string(bytes / kMiB) + "MiB";
}

// Words of frameworks for choices of ours.
struct Spelling {
  std::string_view theirs;
  std::string_view ours;
};
constexpr std::array kSpellings = std::to_array<Spelling>({
    {.theirs = "bfloat16", .ours = "bf16"},
    {.theirs = "float16", .ours = "fp16"},
    {.theirs = "float32", .ours = "fp32"},
    {.theirs = "half", .ours = "fp16"},
    {.theirs = "true", .ours = "on"},
    {.theirs = "false", .ours = "off"},
});

// "300B" is 300e9: tokens and money count in thousands.
double decimal_factor(char suffix) {
  switch (suffix) {
    case 'k':
    case 'K': return 1e3;
    case 'm':
    case 'M': return 1e6;
    case 'b':
    case 'B':
    case 'g':
    case 'G': return 1e9;
    case 't':
    case 'T': return 1e12;
    default: return 0;
  }
}

}  // namespace

std::int64_t parse_count(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place) {
  const std::optional<std::int64_t> count = count_of(word);
  if (!count || *count < low || *count > high) {
    throw wrong(place, word, range_text(low, high));
  }
  return *count;
}

std::int64_t parse_bytes(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place) {
  const std::optional<double> bytes = bytes_of_word(word);
  if (!bytes || *bytes < static_cast<double>(low) || *bytes > static_cast<double>(high)) {
    throw InputError(
        place + ": found '" + word + "', expected an amount with its unit from " + bytes_text(low) +
            " to " + bytes_text(high),
        "80GiB is 80 x 1024^3 bytes, 80GB 80 x 1000^3; a GPU sold as 80 GB has 79.1GiB");
  }
  return std::llround(*bytes);
}

double parse_number(const std::string& word, double low, double high, const std::string& place) {
  constexpr double kUnbounded = 1e18;  // a limit so high bounds no question
  std::string plain = without_group_marks(word);
  const double factor = plain.size() > 1 ? decimal_factor(plain.back()) : 0;
  if (factor > 0) {
    plain.pop_back();
  }
  double value = 0;
  const char* end = plain.data() + plain.size();
  const auto parsed = std::from_chars(plain.data(), end, value);
  value *= factor > 0 ? factor : 1;
  if (parsed.ec != std::errc() || parsed.ptr != end || !(value >= low && value <= high)) {
    throw wrong(place, word,
                high < kUnbounded ? "a number from " + shortest(low) + " to " + shortest(high)
                                  : "a number >= " + shortest(low) + ", such as 2e12, 2T or 300B");
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
  std::string normal = in_lower_case(word);
  std::replace(normal.begin(), normal.end(), '-', '_');
  const auto* const spelling = std::ranges::find(kSpellings, normal, &Spelling::theirs);
  for (const std::string& each :
       {normal, spelling == kSpellings.end() ? normal : std::string(spelling->ours)}) {
    if (std::find(choices.begin(), choices.end(), each) != choices.end()) {
      return each;
    }
  }
  std::string expected;
  for (const std::string& choice : choices) {
    expected += (expected.empty() ? "" : " | ") + choice;
  }
  throw wrong(place, word, expected + suggestion(normal, choices));
}

}  // namespace shardplan
