#include "kernels/pointwise/sum_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

// Part `own` of what lies together is no number: whoever reads it makes the sum none.
template <class T>
void check_sum(std::int64_t num_parts, std::int64_t own, std::int64_t size) {
  CAPTURE(num_parts);
  CAPTURE(own);
  CAPTURE(size);
  std::vector<T> parts = random_values<T>(num_parts * size, 1);
  std::vector<T> of_own;
  std::vector<T> want;
  for (std::int64_t i = 0; i < size; ++i) {
    float sum = 0;
    for (std::int64_t part = 0; part < num_parts; ++part) {
      sum += static_cast<float>(to_double(parts[static_cast<std::size_t>(part * size + i)]));
    }
    want.push_back(from_double<T>(static_cast<double>(sum)));
    T& value = parts[static_cast<std::size_t>(own * size + i)];
    of_own.push_back(value);
    value = from_double<T>(std::numeric_limits<double>::quiet_NaN());
  }
  ScopedStream stream;
  DeviceBuffer<T> dev_parts(parts), dev_own(of_own), sum(size);
  const auto run = [&](T* to) {
    sum_parts(to, dev_parts.data(), dev_own.data(), num_parts, own, {.width = size}, stream);
  };
  run(sum.data());
  CHECK(num_differing(sum.host(), want) == 0);
  run(dev_parts.data() + own * size);
  const std::vector<T> all = dev_parts.host();
  const auto first = all.begin() + own * size;
  CHECK(num_differing(std::vector<T>(first, first + size), want) == 0);
  run(dev_own.data());
  CHECK(num_differing(dev_own.host(), want) == 0);
}

// The same sum in one row and in rows that lie apart, between which nothing is written.
template <class T>
void check_strided(std::int64_t num_parts, const SumRows& to) {
  CAPTURE(num_parts);
  CAPTURE(to.rows);
  CAPTURE(to.width);
  CAPTURE(to.stride);
  const std::int64_t size = to.rows * to.width;
  DeviceBuffer<T> parts(random_values<T>(num_parts * size, 1));
  DeviceBuffer<T> own(random_values<T>(size, 2));
  DeviceBuffer<T> together(size);
  const std::vector<T> before = random_values<T>(to.rows * to.stride, 3);
  DeviceBuffer<T> apart(before);
  ScopedStream stream;
  const std::int64_t last = num_parts - 1;
  sum_parts(together.data(), parts.data(), own.data(), num_parts, last, {.width = size}, stream);
  sum_parts(apart.data(), parts.data(), own.data(), num_parts, last, to, stream);
  const std::vector<T> sums = together.host();
  std::vector<T> want = before;
  for (std::int64_t row = 0; row < to.rows; ++row) {
    std::copy_n(sums.begin() + row * to.width, to.width, want.begin() + row * to.stride);
  }
  CHECK(num_differing(apart.host(), want) == 0);
}

}  // namespace

TEST_CASE("parts are added in their order and rounded once, bit for bit, of any number") {
  for (const std::int64_t num_parts : {1, 2, 3, 4, 5, 6, 8, 12, 16}) {
    for (const std::int64_t size : {8, 2056, 100008}) {
      for (const std::int64_t own : {std::int64_t{0}, num_parts / 2, num_parts - 1}) {
        check_sum<float>(num_parts, own, size);
        check_sum<__nv_bfloat16>(num_parts, own, size);
      }
    }
  }
}

TEST_CASE("a sum goes to rows that lie apart, and what lies between them stays") {
  for (const std::int64_t num_parts : {2, 3, 4, 8}) {
    for (const SumRows& to :
         {SumRows{.rows = 1, .width = 24, .stride = 24},
          SumRows{.rows = 3, .width = 8, .stride = 8}, SumRows{.rows = 5, .width = 8, .stride = 40},
          SumRows{.rows = 129, .width = 72, .stride = 200},
          SumRows{.rows = 300, .width = 2048, .stride = 6144}}) {
      check_strided<float>(num_parts, to);
      check_strided<__nv_bfloat16>(num_parts, to);
    }
  }
}

}  // namespace shardplan
