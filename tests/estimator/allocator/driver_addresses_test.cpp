#include "estimator/allocator/driver_addresses.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "estimator/plan/units.h"

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

TEST_CASE("of all rests that fit the lowest is taken") {
  std::mt19937_64 random(1);
  DriverAddresses addresses;
  std::map<std::int64_t, std::int64_t> taken;
  std::map<std::int64_t, std::int64_t> rests;  // joined, by address
  std::int64_t lowest = std::int64_t{1} << 47;
  int from_rests = 0;
  for (int step = 0; step < 2000; ++step) {
    if (taken.empty() || random() % 5 < 3) {
      const std::int64_t bytes = 2 * kMiB * static_cast<std::int64_t>(1 + random() % 40);
      const std::int64_t address = addresses.take(bytes);
      const auto fits =
          std::ranges::find_if(rests, [&](const auto& rest) { return rest.second >= bytes; });
      const std::int64_t pieces = round_up(bytes, 32 * kMiB);
      REQUIRE(address == (fits == rests.end() ? lowest - pieces : fits->first));
      const std::int64_t room = fits == rests.end() ? pieces : fits->second;
      from_rests += fits == rests.end() ? 0 : 1;
      lowest = std::min(lowest, address);
      rests.erase(address);
      if (room > bytes) {
        rests[address + bytes] = room - bytes;
      }
      taken[address] = bytes;
    } else {
      const auto given =
          std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
      addresses.give_back(given->first, given->second);
      rests.insert(*given);
      taken.erase(given);
      for (auto rest = rests.begin(); std::next(rest) != rests.end();) {
        const auto next = std::next(rest);
        if (rest->first + rest->second == next->first) {
          rest->second += next->second;
          rests.erase(next);
        } else {
          rest = next;
        }
      }
    }
  }
  CHECK(from_rests > 500);
}

}  // namespace
}  // namespace shardplan
