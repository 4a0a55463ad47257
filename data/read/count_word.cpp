#include "data/read/count_word.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<Suffix, 7> kSuffixes = {{
    {.name = "", .factor = 1},
    {.name = "k", .factor = kKiB},
    {.name = "K", .factor = kKiB},
    {.name = "Ki", .factor = kKiB},
    {.name = "m", .factor = kMiB},
    {.name = "M", .factor = kMiB},
    {.name = "Mi", .factor = kMiB},
}};

}  // namespace

std::string without_group_marks(std::string_view word) {
  const auto is_digit = [&](std::size_t place) {
    return place < word.size() && word[place] >= '0' && word[place] <= '9';
  };
  std::string plain;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool is_mark = word[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1);
    plain += is_mark ? "" : std::string(1, word[i]);
  }
  return plain;
}

std::optional<std::int64_t> count_of(std::string_view grouped_word) {
  const std::string word = without_group_marks(grouped_word);
  const std::size_t num_digits = std::min(word.size(), word.find_first_not_of("0123456789"));
  const auto* const suffix =
      std::ranges::find(kSuffixes, std::string_view(word).substr(num_digits), &Suffix::name);
  std::int64_t count = 0;
  const auto read = std::from_chars(word.data(), word.data() + num_digits, count);
  if (suffix == kSuffixes.end() || read.ec != std::errc() ||
      __builtin_mul_overflow(count, suffix->factor, &count)) {
    return std::nullopt;
  }
  return count;
}

}  // namespace shardplan
