#include "search/rank.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <span>

namespace shardplan {

namespace {

Candidate candidate(std::int64_t index, double tokens_per_s, std::int64_t bytes) {
  Candidate made = {.index = index, .price = {}};
  made.price.tokens_per_s_per_gpu = tokens_per_s;
  made.price.allocated_bytes = bytes;
  return made;
}

}  // namespace

TEST_CASE("faster beats smaller, smaller beats earlier, earlier beats later") {
  CHECK(is_better(candidate(9, 2.0, 9), candidate(1, 1.0, 1)));
  CHECK(is_better(candidate(9, 1.0, 1), candidate(1, 1.0, 9)));
  CHECK(is_better(candidate(1, 1.0, 1), candidate(9, 1.0, 1)));
  CHECK_FALSE(is_better(candidate(1, 1.0, 1), candidate(1, 1.0, 1)));
}

TEST_CASE("the best few are the head of the sorted list, in whatever order they come") {
  std::mt19937_64 random(1);
  std::vector<Candidate> all;
  for (std::int64_t index = 0; index < 200; ++index) {
    all.push_back(candidate(index, static_cast<double>(random() % 20),
                            static_cast<std::int64_t>(random() % 3)));
  }
  std::vector<Candidate> sorted = all;
  std::ranges::sort(sorted, is_better);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    Best best(7);
    for (const Candidate& one : all) {
      const bool admitted = best.admits(one);
      best.offer(one);
      const bool kept = std::ranges::any_of(
          best.candidates(), [&](const Candidate& other) { return other.index == one.index; });
      CHECK(admitted == kept);
    }
    REQUIRE(best.candidates().size() == 7);
    CHECK(std::ranges::equal(
        best.candidates(), std::span(sorted).first(7),
        [](const Candidate& one, const Candidate& other) { return one.index == other.index; }));
  }
}

TEST_CASE("a list of none keeps none") {
  Best best(0);
  best.offer(candidate(1, 1.0, 1));
  CHECK(best.candidates().empty());
}

}  // namespace shardplan
