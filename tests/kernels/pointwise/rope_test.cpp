#include "kernels/pointwise/rope.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr double kTheta = 500000;
constexpr std::int64_t kPositions = 8192;

struct Shape {
  RopeRows rows;
  std::int64_t num_heads;
  std::int64_t head_dim;
  std::int64_t row_width;
};
const Shape kShapes[] = {
    {{.rows = 1, .length = 1}, 1, 16, 16},
    {{.rows = 6, .length = 6, .first_start = 0, .second_start = 3}, 5, 64, 448},
    // Two sequences, the zigzag share of rank 1 of 4: chunks 1 and 6 of 8.
    {{.rows = 4096, .length = 2048, .first_start = 1024, .second_start = 6144}, 10, 128, 1536},
};

template <class T>
void check_shape(const Shape& shape) {
  CAPTURE(shape.num_heads);
  CAPTURE(shape.head_dim);
  const std::vector<T> qkv = random_values<T>(shape.rows.rows * shape.row_width, 1);
  std::vector<double> want;
  want.reserve(qkv.size());
  for (const T value : qkv) { want.push_back(to_double(value)); }
  const std::int64_t half = shape.head_dim / 2;
  for (std::int64_t row = 0; row < shape.rows.rows; ++row) {
    const std::int64_t i = row % shape.rows.length;
    const std::int64_t position = i < shape.rows.length / 2
                                      ? shape.rows.first_start + i
                                      : shape.rows.second_start + i - shape.rows.length / 2;
    for (std::int64_t j = 0; j < shape.num_heads * half; ++j) {
      const double angle =
          static_cast<double>(position) *
          std::pow(kTheta, -2.0 * static_cast<double>(j % half) / static_cast<double>(2 * half));
      double& low = want[static_cast<std::size_t>(row * shape.row_width +
                                                  j / half * shape.head_dim + j % half)];
      double& high = *(&low + half);
      const double before = low;
      low = before * std::cos(angle) - high * std::sin(angle);
      high = high * std::cos(angle) + before * std::sin(angle);
    }
  }
  ScopedStream stream;
  DeviceBuffer<float2> table(kPositions * half);
  rope_table(table.data(), kPositions, shape.head_dim, kTheta, stream);
  DeviceBuffer<T> dev_qkv(qkv);
  rope(dev_qkv.data(), table.data(), shape.rows, shape.row_width, shape.num_heads, shape.head_dim,
       RopeDirection::kForward, stream);
  CHECK(relative_error(dev_qkv.host(), want) < kRoundingError<T>);
  rope(dev_qkv.data(), table.data(), shape.rows, shape.row_width, shape.num_heads, shape.head_dim,
       RopeDirection::kInverse, stream);
  std::vector<double> original;
  original.reserve(qkv.size());
  for (const T value : qkv) { original.push_back(to_double(value)); }
  CHECK(relative_error(dev_qkv.host(), original) < 2 * kRoundingError<T>);
}

// Chunks 1 and 6 of 8 of three sequences.
template <class T>
void check_chunks() {
  constexpr std::int64_t kChunk = 40, kHeads = 6, kHeadDim = 64, kWidth = 512, kSequences = 3;
  const std::vector<T> qkv = random_values<T>(kSequences * 2 * kChunk * kWidth, 1);
  ScopedStream stream;
  DeviceBuffer<float2> table(8 * kChunk * (kHeadDim / 2));
  rope_table(table.data(), 8 * kChunk, kHeadDim, kTheta, stream);
  for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kInverse}) {
    DeviceBuffer<T> at_once(qkv), one_by_one(qkv);
    rope(at_once.data(), table.data(),
         {.rows = kSequences * 2 * kChunk,
          .length = 2 * kChunk,
          .first_start = kChunk,
          .second_start = 6 * kChunk},
         kWidth, kHeads, kHeadDim, direction, stream);
    for (std::int64_t chunk = 0; chunk < 2 * kSequences; ++chunk) {
      const std::int64_t start = (chunk % 2 == 0 ? 1 : 6) * kChunk;
      rope(one_by_one.data() + chunk * kChunk * kWidth, table.data(),
           {.rows = kChunk,
            .length = kChunk,
            .first_start = start,
            .second_start = start + kChunk / 2},
           kWidth, kHeads, kHeadDim, direction, stream);
    }
    CHECK(num_differing(at_once.host(), one_by_one.host()) == 0);
    CHECK(num_differing(at_once.host(), qkv) > 0);
  }
}

}  // namespace

TEST_CASE("RoPE on two chunks of every sequence has the bits of a call for each chunk") {
  check_chunks<float>();
  check_chunks<__nv_bfloat16>();
}

TEST_CASE("RoPE rotates as in double precision and the inverse rotates back, in fp32") {
  for (const Shape& shape : kShapes) { check_shape<float>(shape); }
}

TEST_CASE("RoPE rotates as in double precision and the inverse rotates back, in bf16") {
  for (const Shape& shape : kShapes) { check_shape<__nv_bfloat16>(shape); }
}

}  // namespace shardplan
