#include "kernels/pointwise/convert.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr std::int64_t kSizes[] = {8, 4088, 4096, 100008};

template <class To, class From>
void check_convert(std::int64_t size) {
  const std::vector<From> from = random_values<From>(size, 1, 0, 1e3);
  std::vector<To> want;
  want.reserve(from.size());
  for (const From value : from) { want.push_back(from_double<To>(to_double(value))); }
  ScopedStream stream;
  DeviceBuffer<From> dev_from(from);
  DeviceBuffer<To> to(size);
  convert(to.data(), dev_from.data(), size, stream);
  CHECK(num_differing(to.host(), want) == 0);
}

template <class A, class B>
void check_add(std::int64_t size) {
  const std::vector<A> a = random_values<A>(size, 1);
  const std::vector<B> b = random_values<B>(size, 2);
  std::vector<A> want;
  for (std::size_t i = 0; i < a.size(); ++i) {
    want.push_back(
        from_double<A>(static_cast<double>(static_cast<float>(to_double(a[i]) + to_double(b[i])))));
  }
  ScopedStream stream;
  DeviceBuffer<A> dev_a(a), sum(size);
  DeviceBuffer<B> dev_b(b);
  add(sum.data(), dev_a.data(), dev_b.data(), size, stream);
  CHECK(num_differing(sum.host(), want) == 0);
  add(dev_a.data(), dev_a.data(), dev_b.data(), size, stream);
  CHECK(num_differing(dev_a.host(), want) == 0);
}

// Rows among others: `columns` of each of 40 rows, strides apart.
template <class To, class From>
void check_rows(std::int64_t columns) {
  constexpr std::int64_t kRows = 40;
  const std::int64_t to_stride = columns + 16;
  const std::int64_t from_stride = columns + 8;
  const std::vector<From> from = random_values<From>(kRows * from_stride, 1);
  const std::vector<To> before = random_values<To>(kRows * to_stride, 2);
  std::vector<To> converted = before;
  std::vector<To> added = before;
  for (std::int64_t i = 0; i < kRows * columns; ++i) {
    const double value =
        to_double(from[static_cast<std::size_t>(i / columns * from_stride + i % columns)]);
    const auto at = static_cast<std::size_t>(i / columns * to_stride + i % columns);
    converted[at] = from_double<To>(value);
    const double sum = value + to_double(before[at]);
    added[at] = from_double<To>(static_cast<double>(static_cast<float>(sum)));
  }
  ScopedStream stream;
  DeviceBuffer<From> dev_from(from);
  DeviceBuffer<To> to(before);
  if constexpr (sizeof(To) >= sizeof(From)) {
    add_rows(to.data(), to_stride, dev_from.data(), from_stride, kRows, columns, stream);
    CHECK(num_differing(to.host(), added) == 0);
  }
  if constexpr (sizeof(To) != sizeof(From)) {
    to.assign(before);
    convert_rows(to.data(), to_stride, dev_from.data(), from_stride, kRows, columns, stream);
    CHECK(num_differing(to.host(), converted) == 0);
  }
}

}  // namespace

TEST_CASE("rows that lie apart are converted and added like any others, and nothing beside them") {
  for (const std::int64_t columns : {8, 24, 1032}) {
    CAPTURE(columns);
    check_rows<float, __nv_bfloat16>(columns);
    check_rows<__nv_bfloat16, float>(columns);
    check_rows<__nv_bfloat16, __nv_bfloat16>(columns);
    check_rows<float, float>(columns);
  }
}

TEST_CASE("conversion rounds to nearest even, bit for bit") {
  for (const std::int64_t size : kSizes) {
    CAPTURE(size);
    check_convert<float, __nv_bfloat16>(size);
    check_convert<__nv_bfloat16, float>(size);
  }
}

TEST_CASE("addition rounds once, bit for bit, out of place and in place, of any size") {
  std::vector<std::int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.insert(sizes.end(), {1, 3, 4101});  // a norm is a single number
  for (const std::int64_t size : sizes) {
    CAPTURE(size);
    check_add<float, float>(size);
    check_add<__nv_bfloat16, __nv_bfloat16>(size);
    check_add<float, __nv_bfloat16>(size);
  }
}

}  // namespace shardplan
