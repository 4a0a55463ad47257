#include "estimator/plan/expert_routing.h"

#include <algorithm>

#include "estimator/plan/number.h"

namespace shardplan {
namespace {

// Probability that `chosen` different ones of `all` are none of `some`.
double none_of(std::int64_t all, std::int64_t some, std::int64_t chosen) {
  double probability = 1;
  for (std::int64_t i = 0; i < chosen; ++i) {
    probability *= std::max(0.0, number(all - some - i)) / number(all - i);
  }
  return probability;
}

// Ways to choose `chosen` of `all`.
double ways(std::int64_t all, std::int64_t chosen) {
  double count = chosen <= all ? 1 : 0;
  for (std::int64_t i = 0; i < chosen && i < all; ++i) { count *= number(all - i) / number(i + 1); }
  return count;
}

// How a token's groups may fall to `experts` neighbours: whole ones, and one in part.
template <typename Visit>
void visit_groups(const MoeSpec& moe, std::int64_t experts, const Visit& visit) {
  const std::int64_t group = moe.num_experts / moe.num_groups;
  const std::int64_t whole = experts / group;
  const std::int64_t part = experts % group;
  const std::int64_t parts = part > 0 ? 1 : 0;
  const double all = ways(moe.num_groups, moe.topk_groups);
  for (std::int64_t i = 0; i <= std::min(whole, moe.topk_groups); ++i) {
    for (std::int64_t j = 0; j <= std::min(parts, moe.topk_groups - i); ++j) {
      const double chance =
          ways(whole, i) * ways(moe.num_groups - whole - parts, moe.topk_groups - i - j) / all;
      visit(chance, i * group + j * part);
    }
  }
}

}  // namespace

double share_choosing(const MoeSpec& moe, std::int64_t experts) {
  const std::int64_t eligible = moe.topk_groups * (moe.num_experts / moe.num_groups);
  double none = 0;
  visit_groups(moe, experts, [&](double chance, std::int64_t some) {
    none += chance * none_of(eligible, some, moe.topk);
  });
  return 1 - none;
}

// Of the experts that its groups leave a token, it draws without putting back.
RankChoices choices_of(const MoeSpec& moe, std::int64_t experts) {
  const double eligible = number(moe.topk_groups * (moe.num_experts / moe.num_groups));
  const double drawn = number(moe.topk);
  double mean = 0;
  double square = 0;
  visit_groups(moe, experts, [&](double chance, std::int64_t some) {
    const double share = number(some) / eligible;
    const double expected = drawn * share;
    const double variance =
        eligible > 1 ? expected * (1 - share) * (eligible - drawn) / (eligible - 1) : 0;
    mean += chance * expected;
    square += chance * (variance + expected * expected);
  });
  return {.mean = mean, .variance = std::max(0.0, square - mean * mean)};
}

}  // namespace shardplan
