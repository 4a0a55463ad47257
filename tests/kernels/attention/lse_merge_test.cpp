#include "kernels/attention/lse_merge.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t head_dim;
};
constexpr Shape kShapes[] = {{1, 1, 8}, {74, 3, 80}, {128, 5, 128}, {10, 2, 192}};

template <class T>
void check_shape(const Shape& shape) {
  CAPTURE(shape.rows);
  CAPTURE(shape.head_dim);
  const std::int64_t heads = shape.rows * shape.heads;
  std::vector<double> want_o(static_cast<std::size_t>(heads * shape.head_dim), 0);
  std::vector<double> want_lse(static_cast<std::size_t>(heads),
                               -std::numeric_limits<double>::infinity());
  ScopedStream stream;
  DeviceBuffer<float> o(std::vector<float>(want_o.size(), 0.0F)),
      lse(std::vector<float>(want_lse.size(), -std::numeric_limits<float>::infinity()));
  // Some rows of the first part saw no key.
  for (unsigned part = 0; part < 3; ++part) {
    const std::vector<T> part_o = random_values<T>(heads * shape.head_dim, 10 + part);
    std::vector<float> part_lse = random_values<float>(heads, 20 + part, 0, 4);
    for (std::size_t i = 2; part == 0 && i < part_lse.size(); i += 3) {
      part_lse[i] = -std::numeric_limits<float>::infinity();
    }
    for (std::size_t i = 0; i < part_lse.size(); ++i) {
      const double added = std::exp(static_cast<double>(part_lse[i]));
      const double before = std::exp(want_lse[i]);
      want_lse[i] = std::log(before + added);
      for (std::size_t j = i * static_cast<std::size_t>(shape.head_dim);
           j < (i + 1) * static_cast<std::size_t>(shape.head_dim); ++j) {
        want_o[j] = before + added == 0
                        ? 0
                        : (want_o[j] * before + to_double(part_o[j]) * added) / (before + added);
      }
    }
    DeviceBuffer<T> dev_o(part_o);
    DeviceBuffer<float> dev_lse(part_lse);
    lse_merge(o.data(), lse.data(), dev_o.data(), dev_lse.data(), shape.rows, shape.heads,
              shape.head_dim, stream);
    CHECK(relative_error(o.host(), want_o) < 1e-6);
  }
  CHECK(relative_error(lse.host(), want_lse) < 1e-6);
}

}  // namespace

TEST_CASE("merged attention equals the double-precision merge, also of rows that saw no key") {
  for (const Shape& shape : kShapes) {
    check_shape<float>(shape);
    check_shape<__nv_bfloat16>(shape);
  }
}

}  // namespace shardplan
