#include "search/walk/rank.h"

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

TEST_CASE("one per family keeps the best of every family, and the best families") {
  std::mt19937_64 random(2);
  std::vector<Candidate> all;
  for (std::int64_t index = 0; index < 300; ++index) {
    all.push_back(candidate(index, static_cast<double>(random() % 50),
                            static_cast<std::int64_t>(random() % 5)));
    all.back().family.tp = static_cast<std::int64_t>(random() % 6);
    all.back().family.zero = static_cast<std::int64_t>(random() % 3);
  }
  std::vector<Candidate> sorted = all;
  std::ranges::sort(sorted, is_better);
  std::vector<Candidate> expected;
  for (const Candidate& one : sorted) {
    if (std::ranges::find(expected, one.family, &Candidate::family) == expected.end()) {
      expected.push_back(one);
    }
  }
  REQUIRE(expected.size() == 18);
  expected.resize(7);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    Best best(7, KeptPlans::kOnePerFamily);
    for (const Candidate& one : all) { best.offer(one); }
    CHECK(
        std::ranges::equal(best.candidates(), expected, {}, &Candidate::index, &Candidate::index));
  }
}

TEST_CASE("the front is what no pair comparison beats, in whatever order candidates come") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    std::vector<Candidate> all;
    for (std::int64_t index = 0; index < 200; ++index) {
      all.push_back(candidate(index, static_cast<double>(random() % 30),
                              static_cast<std::int64_t>(random() % 30)));
    }
    std::vector<Candidate> expected;
    for (const Candidate& one : all) {
      const bool beaten = std::ranges::any_of(all, [&](const Candidate& other) {
        const Price& mine = one.price;
        const Price& its = other.price;
        return its.allocated_bytes <= mine.allocated_bytes &&
               its.tokens_per_s_per_gpu >= mine.tokens_per_s_per_gpu &&
               (its.allocated_bytes < mine.allocated_bytes ||
                its.tokens_per_s_per_gpu > mine.tokens_per_s_per_gpu || other.index < one.index);
      });
      if (!beaten) {
        expected.push_back(one);
      }
    }
    std::ranges::sort(expected, {}, [](const Candidate& one) { return one.price.allocated_bytes; });
    std::shuffle(all.begin(), all.end(), random);
    Front front;
    for (const Candidate& one : all) { front.offer(one); }
    CHECK(
        std::ranges::equal(front.candidates(), expected, {}, &Candidate::index, &Candidate::index));
    CHECK(std::ranges::none_of(all, [&](const Candidate& one) {
      return front.admits(one) &&
             std::ranges::find(expected, one.index, &Candidate::index) == expected.end();
    }));
  }
}

TEST_CASE("a tied group is what lies within the uncertainty of its fastest plan") {
  const double step = 1 - kSpeedUncertainty;
  CHECK(tied_groups({}).empty());
  CHECK(tied_groups({100, 100, 100 * step * 1.001, 100 * step * 0.999, 100 * step * step, 1}) ==
        std::vector<std::int64_t>{1, 1, 1, 2, 2, 3});
}

}  // namespace shardplan
