// Shares of tokens, and how they vary, by counting.
#include "estimator/plan/expert_routing.h"

#include <doctest/doctest.h>

#include <bit>

namespace shardplan {
namespace {

// Of the experts of a rank: how many a token chooses.
struct CountedChoices {
  double share = 0;  // of the tokens that choose any
  double mean = 0;
  double variance = 0;
};

// By listing every choice of a token that a router with groups allows, each as likely: groups
// first, then experts of theirs.
CountedChoices counted_choices(const MoeSpec& moe, std::int64_t experts) {
  const auto group = static_cast<unsigned>(moe.num_experts / moe.num_groups);
  CountedChoices counted;
  double square = 0;
  int ways_to_choose_groups = 0;
  for (unsigned groups = 0; groups < 1U << moe.num_groups; ++groups) {
    if (std::popcount(groups) != moe.topk_groups) {
      continue;
    }
    unsigned eligible = 0;
    for (unsigned i = 0; i < moe.num_experts; ++i) {
      eligible |= ((groups >> (i / group)) & 1U) << i;
    }
    int all = 0;
    int touched = 0;
    double here = 0;
    double here_square = 0;
    for (unsigned chosen = 0; chosen < 1U << moe.num_experts; ++chosen) {
      if (std::popcount(chosen) == moe.topk && (chosen & ~eligible) == 0) {
        const int count = std::popcount(chosen & ((1U << experts) - 1));
        ++all;
        touched += count > 0 ? 1 : 0;
        here += count;
        here_square += count * count;
      }
    }
    counted.share += static_cast<double>(touched) / all;
    counted.mean += here / all;
    square += here_square / all;
    ++ways_to_choose_groups;
  }
  counted.share /= ways_to_choose_groups;
  counted.mean /= ways_to_choose_groups;
  counted.variance = square / ways_to_choose_groups - counted.mean * counted.mean;
  return counted;
}

}  // namespace

TEST_CASE("tokens choose a rank's experts as often, and vary, as listing every choice says") {
  for (const MoeSpec& moe :
       {MoeSpec{.num_experts = 8, .topk = 2}, MoeSpec{.num_experts = 12, .topk = 5},
        MoeSpec{.num_experts = 12, .topk = 4, .num_groups = 6, .topk_groups = 3},
        MoeSpec{.num_experts = 12, .topk = 3, .num_groups = 2, .topk_groups = 1},
        MoeSpec{.num_experts = 4, .topk = 4}}) {
    for (const std::int64_t experts : {1, 2, 4, 6, 8, 12}) {
      if (experts <= moe.num_experts) {
        const CountedChoices counted = counted_choices(moe, experts);
        const RankChoices choices = choices_of(moe, experts);
        CHECK(share_choosing(moe, experts) == doctest::Approx(counted.share));
        CHECK(choices.mean == doctest::Approx(counted.mean));
        CHECK(choices.variance == doctest::Approx(counted.variance));
      }
    }
  }
}

// arXiv 2412.19437, section 3.2.2: "each token will be sent to at most 4 nodes".
TEST_CASE("DeepSeek-V3's tokens go to fewer than four of eight nodes") {
  const MoeSpec moe{.num_experts = 256, .topk = 8, .num_groups = 8, .topk_groups = 4};
  const double nodes = 8 * share_choosing(moe, 256 / 8);
  CHECK(nodes > 3.5);
  CHECK(nodes < 4);
  MoeSpec free = moe;
  free.num_groups = free.topk_groups = 1;
  CHECK(8 * share_choosing(free, 256 / 8) > 5);
}

}  // namespace shardplan
