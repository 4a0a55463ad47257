// A matrix on the host, row-major.
#pragma once

#include <cstdint>
#include <vector>

namespace shardplan {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;
};

inline double& at(Matrix& matrix, std::int64_t row, std::int64_t col) {
  return matrix.values[static_cast<std::size_t>(row * matrix.cols + col)];
}
inline double at(const Matrix& matrix, std::int64_t row, std::int64_t col) {
  return matrix.values[static_cast<std::size_t>(row * matrix.cols + col)];
}

inline Matrix zeros(std::int64_t rows, std::int64_t cols) {
  return {.rows = rows,
          .cols = cols,
          .values = std::vector<double>(static_cast<std::size_t>(rows * cols))};
}

}  // namespace shardplan
