// Every plan of a cluster: enumerate, prune with a named reason, bound, price, rank.
//
// A search has three parts. The census counts, without visiting plans one by one, how many break
// each rule first, how many an earlier plan stands for, and how many are left (census.h). The walk
// prices those that are left, branch by branch, the most promising first; a branch whose floor of
// memory or time shows that nothing in it can be an answer is cut and counted under that bound
// (walk.h). The finalists get their full estimates.
//
// The answer does not depend on the number of threads. Branches are walked in rounds whose sizes
// are fixed; within a round a branch is cut by what the rounds before it found and by what it found
// itself, never by what another thread happens to have found meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/plan/job.h"
#include "estimator/price/price.h"
#include "search/space/search_space.h"
#include "search/verdict/verdict.h"
#include "search/walk/price_tables.h"

namespace shardplan {

// How far a search is; told now and then by one of its threads.
struct SearchProgress {
  std::int64_t plans = 0;    // valid and unlike all before them
  std::int64_t decided = 0;  // of those: priced or cut
  std::int64_t priced = 0;
  double seconds = 0;
  // Behind the last decision: of the plans to show, those that have their full estimates.
  std::int64_t estimated = 0;
  std::int64_t to_estimate = 0;  // 0: plans are still decided
};

// Branches that are not priced: those without answers, those whose plans all are over the limit, so
// that what fits is counted in full, or none.
enum class Cuts { kAll, kOverLimit, kNone };

struct SearchOptions {
  double memory_threshold = 0.80;  // share of the capacity that belongs to the basis
  MemoryBasis basis = MemoryBasis::kAllocated;
  bool takes_tight = false;  // plans that must give cached memory back are answers, too
  std::int64_t top = 10;
  std::int64_t threads = 0;  // 0: as parallel.h says; the result does not depend on it
  Cuts cuts = Cuts::kAll;
  // Slower plans are no answers, and may be missing where nothing else fits. Of a search whose
  // space is a part of that of the first search with the same tables.
  double least_tokens_per_s_per_gpu = 0;
  bool distinct = false;  // of each family (same_family in rank.h) only the best plan
  bool pareto = false;    // also the front of allocated bytes against speed
  std::function<void(const SearchProgress&)> progress =
      nullptr;  // called from one thread at a time
  // Once it is set no more plans are priced; the answer is of those that were.
  const std::atomic<bool>* stop = nullptr;

  bool is_stopped() const { return stop != nullptr && *stop; }

  MemoryRule rule() const { return {.threshold = memory_threshold, .basis = basis}; }
};

// What every plan keeps that a search or a maximum offers: its verdict is that it fits or, where
// such plans are taken, that it is tight and keeps the rule.
bool fits(const Job& job, const MemoryEstimate& memory, const SearchOptions& options);

struct RankedPlan {
  Plan plan;
  Price price;
  MemoryEstimate memory;  // of the finalists: the full estimate
  StepTime time;
  bool exceeds_device = false;  // it is tight
  // From 1: plans of one group are equally fast as far as the model can tell. 0: not ranked.
  std::int64_t tied_group = 0;
};

// A plan that fits and that no other fitting plan beats: none is as fast with less memory, none is
// faster with as much.
struct ParetoPoint {
  Plan plan;
  Price price;
};

// Why plans of the space are not among the fitting ones:
//   "invalid: RULE"     the rule of the profile that the plan breaks first
//   "unsupported: ..."  the same, for rules that carry this word in their name
//   "equivalent: RULE"  an earlier plan of the space differs only in a choice without effect
//   "cut: BOUND"        not priced: a floor of its branch is over the limit, or so slow that no
//                       plan of the branch can be among the answers (names: bounds.h)
//   "does_not_fit"      priced, over the limit, or over the card: by what is allocated and what is
//                       outside the allocator; of the plans that would be shown by their verdict
//   "undecided"         never for basis allocated. Otherwise: allocated bytes are under the limit,
//                       the upper bound of the basis is not, and the plan is slower than the top,
//                       so that its allocator was not replayed
struct RuleCount {
  std::string rule;
  std::int64_t plans = 0;
  friend bool operator==(const RuleCount&, const RuleCount&) = default;
};

struct SearchResult {
  std::vector<RankedPlan> top;      // fastest first; ties by allocated bytes, then by plan order
  std::vector<ParetoPoint> pareto;  // least memory first; of plans sure to keep the basis
  std::vector<RuleCount> pruned;    // in the order in which the rules are tried; no zero counts
  std::int64_t plans_in_space = 0;  // == sum of pruned + plans_fitting
  std::int64_t plans_distinct = 0;  // valid and unlike all before them: priced or cut
  std::int64_t plans_priced = 0;    // == does_not_fit + undecided + plans_fitting
  std::int64_t plans_fitting = 0;   // of those priced
  Plan nearest;                     // when nothing is valid: the first plan that the last of the
                                    // rules refuses, all others having refused their plans before
  Plan smallest;                    // when nothing fits: the valid plan with the least memory
  Price smallest_price;
  bool was_stopped = false;  // its counts do not sum
  double seconds = 0;
};

SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options);
// The same with tables of this job, of which several searches make use.
SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options,
                          PriceTables& tables);

}  // namespace shardplan
