#include "search/walk/branches.h"

#include <algorithm>
#include <tuple>

#include "estimator/plan/units.h"
#include "search/walk/bounds.h"

namespace shardplan {

namespace {

constexpr std::size_t kCutAxes = 4;          // tp, cp, ep, etp
constexpr std::int64_t kManyBranches = 512;  // enough for threads to share and floors to sort
constexpr std::int64_t kFewestParts = 64;    // of all branches, for threads to share

void list_branches(const SettledRules& rules, std::size_t depth, Prefix& prefix,
                   std::vector<Branch>& branches) {
  const std::size_t axis = rules.next_axis(prefix.depth);
  if (axis >= depth) {
    branches.push_back({.index = prefix.index});
    return;
  }
  const std::size_t above = prefix.depth;
  const std::int64_t index = prefix.index;
  for (std::int64_t value = 0; value < rules.size(axis); ++value) {
    rules.choose(axis, value, prefix);
    if (rules.settle(axis, prefix, rules.distinct()) == rules.distinct()) {
      list_branches(rules, depth, prefix, branches);
    }
    prefix.depth = above;
    prefix.index = index;
  }
}

}  // namespace

std::size_t branch_depth(const SettledRules& rules) {
  std::size_t depth = kFirstFloor;
  while (depth < kNumAxes && rules.plans_below(0) / rules.plans_below(depth) < kManyBranches) {
    depth = std::min(rules.next_axis(depth) + 1, kNumAxes);
  }
  return depth;
}

std::vector<Branch> branches_of(const SettledRules& rules, std::size_t depth) {
  std::vector<Branch> branches;
  if (rules.root_verdict() == rules.distinct() && rules.plans_below(0) > 0) {
    Prefix prefix = rules.root();
    list_branches(rules, depth, prefix, branches);
  }
  return branches;
}

std::vector<std::span<Branch>> neighbours_of(const SettledRules& rules,
                                             std::vector<Branch>& branches) {
  const std::int64_t plans = rules.plans_below(kCutAxes);
  const std::ptrdiff_t most = div_ceil(std::ssize(branches), kFewestParts);
  std::vector<std::span<Branch>> all;
  for (auto first = branches.begin(); first != branches.end();) {
    const auto end = first + std::min(most, branches.end() - first);
    const auto last = std::find_if(first, end, [&](const Branch& branch) {
      return branch.index / plans != first->index / plans;
    });
    all.emplace_back(first, last);
    first = last;
  }
  return all;
}

void sort_by_floor(std::vector<Branch>& branches) {
  std::ranges::sort(branches, [](const Branch& one, const Branch& other) {
    return std::tie(one.floor, one.index) < std::tie(other.floor, other.index);
  });
}

}  // namespace shardplan
