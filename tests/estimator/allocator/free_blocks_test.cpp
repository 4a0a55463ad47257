#include "estimator/allocator/free_blocks.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace shardplan {
namespace {

struct Expected {
  std::int64_t size = 0;
  std::int64_t address = 0;
  std::int32_t block = 0;
  friend bool operator<(const Expected& a, const Expected& b) {
    return std::tie(a.size, a.address) < std::tie(b.size, b.address);
  }
};

// All sizes that a block may have, small ones more often.
std::int64_t random_size(std::mt19937_64& random) {
  return std::int64_t{512} * static_cast<std::int64_t>(1 + (random() >> 10 >> (random() % 54)));
}

TEST_CASE("free blocks of several pools are in the order of a set by size and address") {
  constexpr std::size_t kPools = 3;
  std::mt19937_64 random(1);
  for (const std::size_t most : {std::size_t{4}, std::size_t{50}, std::size_t{6000}}) {
    FreeBlocks<kPools> blocks;
    std::array<std::set<Expected>, kPools> expected;
    std::vector<std::int64_t> sizes = {512};
    for (std::size_t i = 0; i < 3; ++i) { sizes.push_back(random_size(random)); }
    std::vector<std::int32_t> unused;
    for (std::int32_t block = 0; block < static_cast<std::int32_t>(most); ++block) {
      unused.push_back(block);
    }
    for (std::size_t step = 0; step < 50 * most; ++step) {
      const std::size_t pool = random() % kPools;
      std::set<Expected>& held = expected[pool];
      const std::int64_t size =
          random() % 2 == 0 ? sizes[random() % sizes.size()] : random_size(random);
      const auto fitting = held.lower_bound({.size = size});
      const std::int32_t found = blocks.at_least(pool, size);
      REQUIRE(found == (fitting == held.end() ? blocks.kNone : fitting->block));
      if (found != blocks.kNone) {
        const auto next = std::next(fitting);
        REQUIRE(blocks.after(found) == (next == held.end() ? blocks.kNone : next->block));
      }
      if (!unused.empty() && (fitting == held.end() || random() % 2 == 0)) {
        const Expected added = {.size = size,
                                .address = static_cast<std::int64_t>(step * 7919 % 1024),
                                .block = unused.back()};
        if (held.insert(added).second) {
          blocks.insert(pool, added.block, added.size, added.address);
          unused.pop_back();
        }
      } else if (found != blocks.kNone) {
        blocks.erase(found);
        unused.push_back(found);
        held.erase(fitting);
      }
    }
  }
}

}  // namespace
}  // namespace shardplan
