#include "validator/host/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace shardplan {
namespace {

struct Format {
  int mantissa_bits = 0;
  int bias = 0;  // of the exponent; 1 - bias is that of the subnormals
  int top = 0;   // exponent of the largest value, which is 1.75 * 2^top in both formats
  double largest() const { return 1.75 * static_cast<double>(1 << top); }
};

Format format_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? Format{.mantissa_bits = 3, .bias = 7, .top = 8}
                                    : Format{.mantissa_bits = 2, .bias = 15, .top = 15};
}

constexpr int kDoubleBias = 1023;
constexpr int kDoubleMantissaBits = 52;

// Of the binade of a value that is not 0, or of the subnormals.
int exponent_of(const Format& f, double value) {
  const auto bits = std::bit_cast<std::uint64_t>(std::abs(value));
  return std::max(static_cast<int>(bits >> kDoubleMantissaBits) - kDoubleBias, 1 - f.bias);
}

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + kDoubleBias)
                               << kDoubleMantissaBits);
}

}  // namespace

double rounded_to_fp8(Fp8Format format, double value) {
  if (std::isnan(value) || value == 0) {
    return value;
  }
  // 1.5 * 2^52 units leave a double no room for less than a unit.
  const Format f = format_of(format);
  const double clamped = std::clamp(value, -f.largest(), f.largest());
  const int unit = exponent_of(f, clamped) - f.mantissa_bits;
  const double shift = 1.5 * power_of_two(unit + kDoubleMantissaBits);
  return std::copysign((clamped + shift) - shift, value);
}

std::uint8_t fp8_bits(Fp8Format format, double value) {
  if (rounded_to_fp8(format, value) != value) {
    throw std::logic_error("fp8_bits: a value that the format does not hold");
  }
  const Format f = format_of(format);
  const int sign = std::signbit(value) ? 128 : 0;
  if (value == 0) {
    return static_cast<std::uint8_t>(sign);
  }
  const int exponent = exponent_of(f, value);
  const int units = static_cast<int>(std::ldexp(std::abs(value), f.mantissa_bits - exponent));
  // A normal value has 2^mantissa_bits units and more: its leading 1 raises the exponent from 0.
  return static_cast<std::uint8_t>(sign + ((exponent + f.bias - 1) << f.mantissa_bits) + units);
}

int fp8_scale_exponent(Fp8Format format, double amax) {
  if (amax == 0 || !std::isfinite(amax)) {
    return 0;
  }
  constexpr int kLargestExponent = 126;
  int exponent = 0;
  const double half = std::frexp(amax, &exponent);  // amax = 2 * half * 2^(exponent - 1)
  const int fits = format_of(format).top - (exponent - 1) - (2 * half > 1.75 ? 1 : 0);
  return std::min(fits, kLargestExponent);
}

}  // namespace shardplan
