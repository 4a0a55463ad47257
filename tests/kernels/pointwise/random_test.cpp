#include "kernels/pointwise/random.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

template <class T>
std::vector<T> normal(float deviation, std::uint64_t seed, std::int64_t first, std::int64_t size) {
  const ScopedStream stream;
  DeviceBuffer<T> values(size);
  fill_normal(values.data(), deviation, seed, first, size, stream);
  return values.host();
}

}  // namespace

TEST_CASE("numbers have mean 0, the deviation asked for and a normal's fourth moment") {
  constexpr std::int64_t kSize = 1'000'003;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  double neighbours = 0;
  double before = 0;
  for (const float value : normal<float>(2, 7, 0, kSize)) {
    const double x = to_double(value) / 2;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    neighbours += x * before;
    before = x;
  }
  // Five standard errors: 1, sqrt(2), sqrt(96) and 1 over the root of the size.
  CHECK(std::abs(sum / kSize) < 5e-3);
  CHECK(std::abs(squares / kSize - 1) < 7e-3);
  CHECK(std::abs(fourth / kSize - 3) < 5e-2);
  CHECK(std::abs(neighbours / kSize) < 5e-3);
}

TEST_CASE("a number depends on its seed and place alone") {
  const std::vector<float> all = normal<float>(1, 7, 0, 1000);
  const std::vector<float> part = normal<float>(1, 7, 300, 100);
  CHECK(part == std::vector<float>(all.begin() + 300, all.begin() + 400));
  CHECK(normal<float>(1, 8, 0, 1000) != all);
  const std::vector<__nv_bfloat16> narrow = normal<__nv_bfloat16>(1, 7, 0, 1000);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(to_double(narrow[i]) == to_double(from_double<__nv_bfloat16>(to_double(all[i]))));
  }
}

}  // namespace shardplan
