// What a search finds beyond the rule it keeps: plans that only the card holds, and tight ones.
#pragma once

#include <optional>

#include "search/walk/search.h"

namespace shardplan {

// Where no plan of the space fits: the best verdict that any has, and the plans that are over the
// rule, fastest first, if it is that. `options` are those of the search that found none.
struct BeyondRule {
  MemoryVerdict verdict = MemoryVerdict::kDoesNotFit;
  std::vector<RankedPlan> over = {};
};
BeyondRule beyond_rule(const Job& job, const SearchSpace& space, const SearchOptions& options,
                       PriceTables& tables);

// The same search with the card alone for a rule.
SearchOptions without_rule(SearchOptions options);

// The fastest plan that the card holds, where it is worth naming beside `first`, the fastest that
// keeps the rule.
std::optional<RankedPlan> faster_without_rule(const Job& job, const SearchSpace& space,
                                              const SearchOptions& options, const RankedPlan& first,
                                              PriceTables& tables);

}  // namespace shardplan
