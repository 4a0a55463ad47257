#include "kernels/pointwise/copy_matrices.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

// Columns of packed rows to rows without gaps: `count` matrices of 1, 2, ... 7 rows of 8, 16, ...
// 40 columns in turn, then of 300 rows.
struct Place {
  std::int64_t from = 0;  // elements
  std::int64_t to = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

constexpr std::int64_t kStride = 56;
constexpr std::int64_t kFirstColumn = 8;
constexpr std::int64_t kBetween = 8;  // untouched elements behind every matrix

std::vector<Place> places(std::int64_t count) {
  std::vector<Place> all;
  Place next;
  for (std::int64_t i = 0; i < count; ++i) {
    next.rows = i + 1 == count ? 300 : i % 7 + 1;
    next.columns = 8 * (i % 5 + 1);
    all.push_back(next);
    next.from += next.rows * kStride;
    next.to += next.rows * next.columns + kBetween;
  }
  return all;
}

template <class T>
void check_copies(std::int64_t count) {
  CAPTURE(count);
  const std::vector<Place> all = places(count);
  const std::int64_t from_size = all.back().from + all.back().rows * kStride;
  const std::int64_t to_size = all.back().to + all.back().rows * all.back().columns + kBetween;
  const std::vector<T> values = random_values<T>(from_size, 1);
  std::vector<T> want = random_values<T>(to_size, 2);
  ScopedStream stream;
  DeviceBuffer<T> from(values), to(want);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  std::vector<MatrixCopy> copies;
  for (const Place& place : all) {
    copies.push_back({.to = to.data() + place.to,
                      .from = from.data() + place.from + kFirstColumn,
                      .rows = place.rows,
                      .row_bytes = place.columns * kSize,
                      .to_stride_bytes = place.columns * kSize,
                      .from_stride_bytes = kStride * kSize});
    CHECK(is_aligned(copies.back()));
    for (std::int64_t e = 0; e < place.rows * place.columns; ++e) {
      const std::int64_t at =
          place.from + e / place.columns * kStride + kFirstColumn + e % place.columns;
      want[static_cast<std::size_t>(place.to + e)] = values[static_cast<std::size_t>(at)];
    }
  }
  copy_matrices(copies, stream);
  CHECK(num_differing(to.host(), want) == 0);
}

}  // namespace

TEST_CASE("any number of matrices is copied bit for bit, and nothing beside them") {
  for (const std::int64_t count : {1, 2, 32, 85, 86, 200}) {
    check_copies<float>(count);
    check_copies<__nv_bfloat16>(count);
  }
  copy_matrices({}, nullptr);
}

TEST_CASE("a matrix of which anything is no multiple of 16 bytes is not aligned") {
  const MatrixCopy aligned{
      .rows = 3, .row_bytes = 32, .to_stride_bytes = 48, .from_stride_bytes = 64};
  CHECK(is_aligned(aligned));
  for (std::int64_t MatrixCopy::*const bytes :
       {&MatrixCopy::row_bytes, &MatrixCopy::to_stride_bytes, &MatrixCopy::from_stride_bytes}) {
    MatrixCopy copy = aligned;
    copy.*bytes += 8;
    CHECK_FALSE(is_aligned(copy));
  }
  alignas(16) char memory[16] = {};
  MatrixCopy copy = aligned;
  copy.to = memory + 8;
  CHECK_FALSE(is_aligned(copy));
  copy = aligned;
  copy.from = memory + 8;
  CHECK_FALSE(is_aligned(copy));
}

}  // namespace shardplan
