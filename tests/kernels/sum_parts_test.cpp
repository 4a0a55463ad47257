#include "kernels/sum_parts.h"

#include <doctest/doctest.h>

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
    sum_parts(to, dev_parts.data(), dev_own.data(), num_parts, own, size, stream);
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

}  // namespace shardplan
