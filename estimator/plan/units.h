// Units and exact integer division. Bytes and counts are std::int64_t everywhere, times and rates
// double.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace shardplan {

inline constexpr std::int64_t kKiB = std::int64_t{1} << 10;
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;  // memory sizes
inline constexpr double kGB = 1e9;                           // link and memory bandwidths
inline constexpr double kTera = 1e12;                        // FLOP rates

// a / b; a remainder is a programmer's mistake and throws std::logic_error.
constexpr std::int64_t div_exact(std::int64_t a, std::int64_t b) {
  if (b == 0 || a % b != 0) {
    throw std::logic_error("div_exact: " + std::to_string(a) + " is not a multiple of " +
                           std::to_string(b));
  }
  return a / b;
}

// a / b rounded up; a >= 0, b > 0.
constexpr std::int64_t div_ceil(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The smallest multiple of `multiple` that is >= a.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return div_ceil(a, multiple) * multiple;
}

}  // namespace shardplan
