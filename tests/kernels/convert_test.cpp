#include "kernels/convert.h"

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

}  // namespace

TEST_CASE("conversion rounds to nearest even, bit for bit") {
  for (const std::int64_t size : kSizes) {
    CAPTURE(size);
    check_convert<float, __nv_bfloat16>(size);
    check_convert<__nv_bfloat16, float>(size);
  }
}

TEST_CASE("addition rounds once, bit for bit, out of place and in place") {
  for (const std::int64_t size : kSizes) {
    CAPTURE(size);
    check_add<float, float>(size);
    check_add<__nv_bfloat16, __nv_bfloat16>(size);
    check_add<float, __nv_bfloat16>(size);
  }
}

}  // namespace shardplan
