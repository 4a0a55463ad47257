#include "estimator/allocator/sorted_arrays.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

namespace shardplan {
namespace {

bool equal(const SortedArrays<int>& set, const std::set<int>& expected) {
  auto at = set.begin();
  for (const int element : expected) {
    if (at == set.end() || *at != element) {
      return false;
    }
    ++at;
  }
  return at == set.end() && set.empty() == expected.empty();
}

TEST_CASE("sorted arrays hold what a set holds, of a few elements and of many") {
  std::mt19937 random(1);
  for (const int most : {3, 100, 5000}) {
    SortedArrays<int> set;
    std::set<int> expected;
    const auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(2 * most)); };
    for (int step = 0; step < 20 * most; ++step) {
      const int element = any();
      const auto at = set.lower_bound(element);
      const auto expected_at = expected.lower_bound(element);
      REQUIRE((at == set.end()) == (expected_at == expected.end()));
      if (expected_at == expected.end() || random() % 4 == 0) {
        set.insert(element);
        expected.insert(element);
        continue;
      }
      REQUIRE(*at == *expected_at);
      const int other = any();
      if (!expected.contains(other) && random() % 2 == 0) {
        set.erase(at);
        set.insert(other);
        expected.erase(expected_at);
        expected.insert(other);
      } else if (static_cast<int>(expected.size()) > most || random() % 2 == 0) {
        set.erase(element);  // nothing where it is not in the set
        expected.erase(element);
      } else {
        set.insert(other);
        expected.insert(other);
      }
      if (step % std::max(1, most / 10) == 0) {
        REQUIRE(equal(set, expected));
      }
    }
    CHECK(equal(set, expected));
    while (!set.empty()) {
      set.erase(set.begin());
      expected.erase(expected.begin());
    }
    CHECK(equal(set, expected));
  }
}

}  // namespace
}  // namespace shardplan
