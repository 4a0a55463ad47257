#include "kernels/pointwise/cross_entropy.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t columns;  // of every shard, without padding
  std::int64_t padding;
  std::int64_t shards;
};
constexpr Shape kShapes[] = {{1, 1, 7, 1}, {7, 1000, 24, 3}, {37, 32064, 0, 1}, {5, 17001, 7, 2}};

constexpr float kScale = 0.125F;

struct Reference {
  double loss = 0;               // of all rows
  std::vector<double> gradient;  // [rows, columns of all shards]
};

Reference reference(const std::vector<double>& logits, const std::vector<std::int32_t>& targets) {
  Reference want;
  const std::size_t columns = logits.size() / targets.size();
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const double* values = logits.data() + row * columns;
    const double max = *std::max_element(values, values + columns);
    double sum = 0;
    for (std::size_t j = 0; j < columns; ++j) { sum += std::exp(values[j] - max); }
    const double lse = max + std::log(sum);
    want.loss += lse - values[targets[row]];
    for (std::size_t j = 0; j < columns; ++j) {
      const double hit = static_cast<std::int64_t>(j) == targets[row] ? 1 : 0;
      want.gradient.push_back((std::exp(values[j] - lse) - hit) * static_cast<double>(kScale));
    }
  }
  return want;
}

template <class T>
void check_shape(Shape shape) {
  CAPTURE(shape.rows);
  CAPTURE(shape.columns);
  CAPTURE(shape.shards);
  const std::int64_t vocabulary = shape.columns * shape.shards;
  const std::int64_t width = shape.columns + shape.padding;
  const std::vector<T> logits = random_values<T>(shape.rows * vocabulary, 1, 0, 3);
  std::vector<double> exact;
  exact.reserve(logits.size());
  for (const T value : logits) { exact.push_back(to_double(value)); }
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    targets.push_back(static_cast<std::int32_t>(row * 7919 % vocabulary));
  }
  const Reference want = reference(exact, targets);

  ScopedStream stream;
  DeviceBuffer<std::int32_t> dev_targets(targets);
  // The last shard is padding alone.
  const std::int64_t all_shards = shape.shards + 1;
  DeviceBuffer<RowStatistics> statistics(all_shards * shape.rows), combined(shape.rows);
  DeviceBuffer<float> loss(std::vector<float>{1});
  std::vector<std::vector<T>> parts;
  const auto shard_of = [&](std::int64_t index) {
    return VocabularyShard{.rows = shape.rows,
                           .width = width,
                           .num_valid = index < shape.shards ? shape.columns : 0,
                           .first_column = index * shape.columns};
  };
  for (std::int64_t index = 0; index < all_shards; ++index) {
    // Padding that would be the maximum, were it read.
    std::vector<T> part(static_cast<std::size_t>(shape.rows * width), from_double<T>(1000));
    for (std::int64_t i = 0; i < shape.rows * shard_of(index).num_valid; ++i) {
      part[static_cast<std::size_t>(i / shape.columns * width + i % shape.columns)] =
          logits[static_cast<std::size_t>(i / shape.columns * vocabulary + index * shape.columns +
                                          i % shape.columns)];
    }
    DeviceBuffer<T> dev_part(part);
    cross_entropy_statistics(statistics.data() + index * shape.rows, dev_part.data(),
                             dev_targets.data(), shard_of(index), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    parts.push_back(part);
  }
  cross_entropy_combine(combined.data(), loss.data(), statistics.data(), all_shards, shape.rows,
                        0.25, stream);
  CHECK(loss.host()[0] == doctest::Approx(1 + 0.25 * want.loss).epsilon(1e-6));

  std::vector<T> gradient(logits.size());
  double largest_padding = 0;
  for (std::int64_t index = 0; index < all_shards; ++index) {
    DeviceBuffer<T> dev_part(parts[static_cast<std::size_t>(index)]);
    cross_entropy_gradient(dev_part.data(), combined.data(), dev_targets.data(), shard_of(index),
                           kScale, stream);
    const std::vector<T> part = dev_part.host();
    for (std::int64_t i = 0; i < shape.rows * width; ++i) {
      const T value = part[static_cast<std::size_t>(i)];
      if (i % width >= shard_of(index).num_valid) {
        largest_padding = std::max(largest_padding, std::abs(to_double(value)));
      } else {
        gradient[static_cast<std::size_t>(i / width * vocabulary + index * shape.columns +
                                          i % width)] = value;
      }
    }
  }
  CHECK(largest_padding == 0);
  CHECK((shape.rows == 1 ? to_double(gradient[0]) == 0
                         : relative_error(gradient, want.gradient) < kRoundingError<T>));
}

}  // namespace

TEST_CASE("cross-entropy over shards equals the whole vocabulary in double precision, in fp32") {
  for (const Shape shape : kShapes) { check_shape<float>(shape); }
}

TEST_CASE("cross-entropy over shards equals the whole vocabulary in double precision, in bf16") {
  for (const Shape shape : kShapes) { check_shape<__nv_bfloat16>(shape); }
}

}  // namespace shardplan
