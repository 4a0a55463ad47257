#include "kernels/gemm/transpose.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {

TEST_CASE("a transposed matrix has every element at its place, whatever the size") {
  struct Shape {
    std::int64_t batch, rows, columns;
  };
  for (const Shape s : {Shape{1, 1, 1}, Shape{2, 8, 257}, Shape{3, 100, 33}, Shape{1, 4096, 32}}) {
    CAPTURE(s.rows);
    const std::vector<float> in = random_values<float>(s.batch * s.rows * s.columns, 1);
    std::vector<double> want(in.size());
    for (std::int64_t i = 0; i < s.batch * s.rows * s.columns; ++i) {
      const std::int64_t row = i / s.columns % s.rows;
      const std::int64_t matrix = i / s.columns / s.rows;
      want[static_cast<std::size_t>((matrix * s.columns + i % s.columns) * s.rows + row)] =
          static_cast<double>(in[static_cast<std::size_t>(i)]);
    }
    ScopedStream stream;
    DeviceBuffer<float> from(in), to(s.batch * s.rows * s.columns);
    transpose(to.data(), from.data(), s.batch, s.rows, s.columns, stream);
    CHECK(relative_error(to.host(), want) == 0);
  }
}

}  // namespace shardplan
