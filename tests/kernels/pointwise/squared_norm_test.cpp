#include "kernels/pointwise/squared_norm.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

template <class T>
void check_size(std::int64_t size) {
  CAPTURE(size);
  const std::vector<T> values = random_values<T>(size, 1, 0, 0.01);
  double want = 0;
  for (const T value : values) { want += to_double(value) * to_double(value); }
  ScopedStream stream;
  DeviceBuffer<T> dev_values(values);
  DeviceBuffer<double> partial(kSquaredNormPartials);
  DeviceBuffer<float> result(std::vector<float>{0});
  add_squared_norm(result.data(), partial.data(), dev_values.data(), size, 0.5, stream);
  const float once = result.host()[0];
  CHECK(std::abs(static_cast<double>(once) - want / 2) < 1e-6 * want);
  add_squared_norm(result.data(), partial.data(), dev_values.data(), size, 0.5, stream);
  CHECK(result.host()[0] == 2 * once);

  DeviceBuffer<float> factor(2);
  clip_factor(factor.data(), result.data(), 1e6F, stream);
  CHECK(factor.host()[0] == 1);
  const double max_norm = std::sqrt(want) / 4;
  clip_factor(factor.data(), result.data(), static_cast<float>(max_norm), stream);
  CHECK(factor.host()[0] == doctest::Approx(0.25).epsilon(1e-6));
  CHECK(factor.host()[1] == doctest::Approx(std::sqrt(want)).epsilon(1e-6));
}

}  // namespace

TEST_CASE(
    "the squared norm equals a double-precision sum, adds up over calls and repeats exactly") {
  for (const std::int64_t size : {8, 1000, 1048576 + 8, 5000000}) {
    check_size<float>(size);
    check_size<__nv_bfloat16>(size);
  }
}

}  // namespace shardplan
