// What tests say of a search's answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "search/walk/search.h"

namespace shardplan {

inline std::map<std::string, std::int64_t> by_rule(const SearchResult& result) {
  std::map<std::string, std::int64_t> counts;
  for (const RuleCount& count : result.pruned) { counts[count.rule] += count.plans; }
  return counts;
}

inline std::int64_t total(const SearchResult& result) {
  std::int64_t plans = result.plans_fitting;
  for (const RuleCount& count : result.pruned) { plans += count.plans; }
  return plans;
}

inline std::int64_t plans_of_kind(const SearchResult& result, std::string_view kind) {
  std::int64_t plans = 0;
  for (const RuleCount& count : result.pruned) {
    plans += count.rule.starts_with(kind) ? count.plans : 0;
  }
  return plans;
}

inline bool same_top(const SearchResult& one, const SearchResult& other) {
  return std::ranges::equal(
      one.top, other.top, [](const RankedPlan& left, const RankedPlan& right) {
        return left.plan == right.plan && left.time.total_s == right.time.total_s &&
               left.price.step_time_s == right.price.step_time_s &&
               left.price.allocated_bytes == right.price.allocated_bytes &&
               left.price.device_used_bytes == right.price.device_used_bytes &&
               left.exceeds_device == right.exceeds_device;
      });
}

}  // namespace shardplan
