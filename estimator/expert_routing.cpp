#include "estimator/expert_routing.h"

#include <algorithm>

#include "estimator/efficiency.h"
#include "estimator/number.h"

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

}  // namespace

// By how many of the groups that hold them are chosen: whole ones, and one in part.
double share_choosing(const MoeSpec& moe, std::int64_t experts) {
  const std::int64_t group = moe.num_experts / moe.num_groups;
  const std::int64_t whole = experts / group;
  const std::int64_t part = experts % group;
  const std::int64_t parts = part > 0 ? 1 : 0;
  double none = 0;
  for (std::int64_t i = 0; i <= std::min(whole, moe.topk_groups); ++i) {
    for (std::int64_t j = 0; j <= std::min(parts, moe.topk_groups - i); ++j) {
      const double share =
          ways(whole, i) * ways(moe.num_groups - whole - parts, moe.topk_groups - i - j);
      none += share * none_of(moe.topk_groups * group, i * group + j * part, moe.topk);
    }
  }
  return 1 - none / ways(moe.num_groups, moe.topk_groups);
}

bool sends_tokens_once(const FrameworkProfile& profile) {
  return profile.moe_dispatcher == MoeDispatcher::kDeepEp ||
         profile.moe_dispatcher == MoeDispatcher::kHybridEp;
}

DispatchCost dispatch_cost(const FrameworkProfile& profile) {
  if (profile.moe_dispatcher == MoeDispatcher::kDeepEp) {
    return {.sms = 20,
            .start_s = kDeepEpStart.value,
            .row_s = kDeepEpRow.value,
            .link_share = kDeepEpLink.value};
  }
  return {.sms = 16, .start_s = kHybridEpStart.value, .link_share = kHybridEpLink.value};
}

}  // namespace shardplan
