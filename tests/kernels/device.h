// What GPU tests share: values of a fixed seed, and the error against a double-precision reference.
// Plain C++: launchers are called from g++ code.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/pointwise/device_buffer.h"

namespace shardplan {

inline double to_double(double value) {
  return value;
}
inline double to_double(float value) {
  return value;
}
inline double to_double(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T>
T from_double(double value);
template <>
inline float from_double<float>(double value) {
  return static_cast<float>(value);
}
template <>
inline __nv_bfloat16 from_double<__nv_bfloat16>(double value) {
  return __float2bfloat16_rn(static_cast<float>(value));
}

// Normally distributed values, as T rounds them.
template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed, double mean = 0, double spread = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, spread);
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) { values.push_back(from_double<T>(normal(generator))); }
  return values;
}

// ||got - want|| / ||want||
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double delta = to_double(got[i]) - want[i];
    difference += delta * delta;
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

template <class T>
std::int64_t num_differing(const std::vector<T>& got, const std::vector<T>& want) {
  std::int64_t differing = got.size() == want.size() ? 0 : 1;
  for (std::size_t i = 0; i < got.size() && i < want.size(); ++i) {
    differing += to_double(got[i]) == to_double(want[i]) ? 0 : 1;
  }
  return differing;
}

// What rounding to T alone may cost. bf16 keeps 8 significant bits: half a unit in the last place
// is at most 2^-8 of a value. For float it is the sums on the way.
template <class T>
inline constexpr double kRoundingError = 1e-6;
template <>
inline constexpr double kRoundingError<__nv_bfloat16> = 1.0 / 256;

}  // namespace shardplan
