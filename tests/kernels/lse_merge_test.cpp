#include "kernels/lse_merge.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr LseMergeShape kShapes[] = {
    {.batch = 1, .length = 1, .heads = 1, .head_dim = 8, .first_row = 0},
    {.batch = 2, .length = 37, .heads = 3, .head_dim = 80, .first_row = 0},
    {.batch = 2, .length = 64, .heads = 5, .head_dim = 128, .first_row = 32},
    {.batch = 1, .length = 10, .heads = 2, .head_dim = 192, .first_row = 3},
};

// Merges one part into a running result and into its double-precision copy.
template <class T>
struct Merge {
  LseMergeShape shape;
  std::vector<double> o, lse;

  explicit Merge(const LseMergeShape& of)
      : shape(of),
        o(static_cast<std::size_t>(of.batch * of.length * of.heads * of.head_dim), 0),
        lse(static_cast<std::size_t>(of.batch * of.heads * of.length),
            -std::numeric_limits<double>::infinity()) {}

  void add(const std::vector<T>& part_o, const std::vector<float>& part_lse,
           std::int64_t first_row) {
    const std::int64_t part_length = shape.length - first_row;
    for (std::int64_t i = 0; i < shape.batch * part_length * shape.heads; ++i) {
      const std::int64_t head = i % shape.heads;
      const std::int64_t row = i / shape.heads % part_length;
      const std::int64_t sequence = i / shape.heads / part_length;
      double& before = lse[static_cast<std::size_t>((sequence * shape.heads + head) * shape.length +
                                                    first_row + row)];
      const double added =
          part_lse[static_cast<std::size_t>((sequence * shape.heads + head) * part_length + row)];
      const double sum = std::exp(before) + std::exp(added);
      for (std::int64_t j = 0; j < shape.head_dim; ++j) {
        double& value = o[static_cast<std::size_t>(
            ((sequence * shape.length + first_row + row) * shape.heads + head) * shape.head_dim +
            j)];
        const double other = to_double(part_o[static_cast<std::size_t>(i * shape.head_dim + j)]);
        value = sum == 0 ? 0 : (value * std::exp(before) + other * std::exp(added)) / sum;
      }
      before = std::log(sum);
    }
  }
};

template <class T>
void check_shape(const LseMergeShape& shape) {
  CAPTURE(shape.length);
  CAPTURE(shape.head_dim);
  Merge<T> want(shape);
  ScopedStream stream;
  DeviceBuffer<float> o(std::vector<float>(want.o.size(), 0.0F)),
      lse(std::vector<float>(want.lse.size(), -std::numeric_limits<float>::infinity()));
  // The whole range twice, then the upper rows; some rows of the first part saw no key.
  for (unsigned part = 0; part < 3; ++part) {
    LseMergeShape now = shape;
    now.first_row = part == 2 ? shape.first_row : 0;
    const std::int64_t heads = shape.batch * (shape.length - now.first_row) * shape.heads;
    const std::vector<T> part_o = random_values<T>(heads * shape.head_dim, 10 + part);
    std::vector<float> part_lse = random_values<float>(heads, 20 + part, 0, 4);
    for (std::size_t i = 2; part == 0 && i < part_lse.size(); i += 3) {
      part_lse[i] = -std::numeric_limits<float>::infinity();
    }
    want.add(part_o, part_lse, now.first_row);
    DeviceBuffer<T> dev_o(part_o);
    DeviceBuffer<float> dev_lse(part_lse);
    lse_merge(o.data(), lse.data(), dev_o.data(), dev_lse.data(), now, stream);
    CHECK(relative_error(o.host(), want.o) < 1e-6);
  }
  CHECK(relative_error(lse.host(), want.lse) < 1e-6);
}

}  // namespace

TEST_CASE("merged attention equals the double-precision merge, also of rows that saw no key") {
  for (const LseMergeShape& shape : kShapes) {
    check_shape<float>(shape);
    check_shape<__nv_bfloat16>(shape);
  }
}

}  // namespace shardplan
