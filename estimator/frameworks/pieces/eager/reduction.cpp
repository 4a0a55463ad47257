#include "estimator/frameworks/pieces/eager/reduction.h"

#include <algorithm>
#include <bit>

#include "estimator/plan/units.h"

namespace shardplan::eager {
namespace {

std::int64_t last_power_of_2(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
}

}  // namespace

std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t columns,
                              std::int64_t multiprocessors) {
  constexpr std::int64_t kAccumulatorBytes = 4;
  constexpr std::int64_t kThreads = 512;  // of a block, over outputs of one thread
  constexpr std::int64_t kThreadsOfMultiprocessor = 2048;
  constexpr std::int64_t kWarp = 32;
  constexpr std::int64_t kLeastValues = 16;  // of a thread
  constexpr std::int64_t kMostValues = 256;
  const std::int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const std::int64_t outputs = columns / vector;
  const std::int64_t threads = kThreads / vector;
  const std::int64_t wide = std::min(last_power_of_2(outputs), threads);
  const std::int64_t high = std::min(last_power_of_2(rows), threads);
  std::int64_t width = std::min(wide, kWarp);
  const std::int64_t height = std::min(high, threads / width);
  width = std::min(wide, threads / height);
  const bool divides_rows = rows >= height * kLeastValues || rows >= kMostValues;
  if (!divides_rows) {
    return 0;
  }
  const std::int64_t values = div_ceil(rows, height);
  const std::int64_t blocks = div_ceil(outputs, width);
  const std::int64_t most_blocks = multiprocessors * (kThreadsOfMultiprocessor / (width * height));
  if (values < kMostValues || blocks > most_blocks) {
    return 0;
  }
  const std::int64_t blocks_of_output =
      std::max(std::min(div_ceil(most_blocks, blocks), div_ceil(values, kLeastValues)),
               div_ceil(values, kMostValues));
  return blocks_of_output > 1 ? kAccumulatorBytes * columns * blocks_of_output * width * vector : 0;
}

}  // namespace shardplan::eager
