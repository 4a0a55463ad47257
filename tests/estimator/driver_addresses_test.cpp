#include "estimator/driver_addresses.h"

#include <doctest/doctest.h>

#include <vector>

#include "estimator/units.h"

namespace shardplan {
namespace {

// Sizes and addresses of the first segments of a torchtitan run on an H200 (driver 580), MiB,
// addresses from the first one on.
TEST_CASE("segments lie where the driver put those of a traced run") {
  struct Segment {
    std::int64_t size = 0;
    std::int64_t address = 0;
  };
  const std::vector<Segment> traced = {{126, 0},   {16, -32},  {16, -16},  {16, -64},  {44, -128},
                                       {44, -192}, {44, -256}, {16, -212}, {16, -148}, {16, -84},
                                       {16, -48},  {44, -320}, {44, -384}, {44, -448}, {16, -404},
                                       {16, -340}, {16, -276}, {16, -480}, {44, -544}};
  DriverAddresses addresses;
  const std::int64_t first = addresses.take(traced.front().size * kMiB);
  for (std::size_t i = 1; i < traced.size(); ++i) {
    CHECK(addresses.take(traced[i].size * kMiB) == first + traced[i].address * kMiB);
  }
}

TEST_CASE("what is given back joins its neighbours and is taken again") {
  DriverAddresses addresses;
  const std::int64_t low = addresses.take(20 * kMiB);
  const std::int64_t high = addresses.take(12 * kMiB);
  CHECK(high == low + 20 * kMiB);
  addresses.give_back(low, 20 * kMiB);
  addresses.give_back(high, 12 * kMiB);
  CHECK(addresses.take(32 * kMiB) == low);
}

}  // namespace
}  // namespace shardplan
