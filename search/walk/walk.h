// The walk prices the plans that rules leave, branch by branch, and keeps the best.
//
// A branch is a prefix of the axes. Branches are sorted by the floor of their step time and walked
// in rounds of fixed sizes. In a round each branch is cut by the answers of the rounds before it
// and by its own; after the round all that was found is joined. So what is cut, what is priced and
// what is counted is the same for any number of threads and in any order within a round.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "search/space/census.h"
#include "search/walk/bounds.h"
#include "search/walk/price_tables.h"
#include "search/walk/progress.h"
#include "search/walk/rank.h"
#include "search/walk/search.h"

namespace shardplan {

struct WalkTask {
  const Job& job;
  const SettledRules& rules;
  const SearchOptions& options;
  PriceTables& tables;
  std::int64_t limit_bytes = 0;   // for the basis
  std::int64_t card_bytes = 0;    // for what no plan can do without
  std::int64_t num_distinct = 0;  // plans that rules leave, for progress
  // Plans by index that keep the limit and that a replay has shown not to be on the card.
  std::set<std::int64_t> over_card = {};

  // Answers kept, with some for those that the card may refuse as well.
  std::int64_t num_kept() const { return options.top + 2 * std::ssize(over_card); }
};

// Bytes of the basis that a plan surely does not exceed.
// allocated <= required <= reserved <= device_used, so that the first bounds every basis from below
// and the priced device_used, itself an upper bound, bounds it from above.
std::int64_t upper_basis_bytes(const Price& price, MemoryBasis basis);

struct WalkResult {
  std::array<std::int64_t, kNumBounds> cut{};  // plans by bound
  std::int64_t priced = 0;
  std::int64_t fitting = 0;    // by the upper bound of the basis
  std::int64_t undecided = 0;  // between the bounds
  Answers answers;             // of those fitting
  // The fastest undecided plans that answers.top would admit, at most kMaxUndecided of them.
  Best undecided_first;
};
inline constexpr std::int64_t kMaxUndecided = 1024;

// `behind`: undecided plans up to this one are known already and not listed again.
WalkResult walk(const WalkTask& task, const std::optional<Candidate>& behind);

// Every plan that rules leave and that may keep the limit and the card, from all threads, in any
// order. Nothing is cut but what is over the limit. All plans of the space count as decided.
using Visit = std::function<void(const Plan& plan, const Candidate& candidate, std::size_t thread)>;
void visit_plans(const WalkTask& task, const Visit& visit, ProgressReporter& reporter);

// The plan with the least memory by the upper bound of the basis; of equals the first.
std::optional<Candidate> smallest_plan(const WalkTask& task);

}  // namespace shardplan
