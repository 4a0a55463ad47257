#include "kernels/pointwise/stable_sort.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t size;
  std::int64_t num_keys;
};
// One key, one pass, two and three passes; tiles that end in the middle; absent keys.
constexpr Shape kShapes[] = {{1, 1},       {513, 8},        {1000, 256},  {4096, 257},
                             {70001, 128}, {70001, 128257}, {33, 1 << 20}};

void check_shape(Shape shape) {
  CAPTURE(shape.size);
  CAPTURE(shape.num_keys);
  std::minstd_rand generator(7);
  std::vector<std::int32_t> keys(static_cast<std::size_t>(shape.size));
  for (std::int32_t& key : keys) {
    key = static_cast<std::int32_t>(static_cast<std::int64_t>(generator()) % shape.num_keys);
  }
  std::vector<std::int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return keys[std::size_t(i)]; });
  std::vector<std::int32_t> sorted;
  sorted.reserve(order.size());
  for (const std::int32_t i : order) { sorted.push_back(keys[std::size_t(i)]); }

  ScopedStream stream;
  DeviceBuffer<std::int32_t> dev_keys(keys), dev_sorted(shape.size), dev_order(shape.size),
      scratch(stable_sort_scratch(shape.size));
  stable_sort(dev_sorted.data(), dev_order.data(), scratch.data(), dev_keys.data(), shape.size,
              shape.num_keys, stream);
  CHECK(dev_sorted.host() == sorted);
  CHECK(dev_order.host() == order);
}

}  // namespace

TEST_CASE("the sort is stable") {
  for (const Shape shape : kShapes) { check_shape(shape); }
}

}  // namespace shardplan
