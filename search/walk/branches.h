// The branches of a walk: prefixes of the axes that no rule refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "estimator/price/freedom.h"
#include "estimator/price/time_floor.h"
#include "search/space/census.h"

namespace shardplan {

struct Branch {
  std::int64_t index = 0;  // of its first plan
  double floor = 0;        // sorts branches: what is promised first is walked first
  TimeFloor time = {};     // of its plans, where that sorted it
};

// Axes that a branch has chosen: where floors begin; deeper, behind another axis of several values,
// while there are few branches.
std::size_t branch_depth(const SettledRules& rules);

std::vector<Branch> branches_of(const SettledRules& rules, std::size_t depth);

// Branches behind each other that cut the model alike: a thread that takes all of them makes the
// pieces of their prices once. No more together than leave other threads their part.
std::vector<std::span<Branch>> neighbours_of(const SettledRules& rules,
                                             std::vector<Branch>& branches);

void sort_by_floor(std::vector<Branch>& branches);

}  // namespace shardplan
