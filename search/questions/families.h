// Every value of every axis of a search: how many plans fit, why none does, which value passes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "search/walk/search.h"

namespace shardplan {

// One value of an axis with all others free.
struct PlanFamily {
  std::string axis;
  std::string value;
  std::int64_t plans = 0;
  std::int64_t fitting = 0;
  double best_tokens_per_s_per_gpu = 0;
  std::string reason;            // of a rejected one: what most of its plans fail by
  std::int64_t least_bytes = 0;  // allocated, where its plans do not fit
  std::string nearest;           // the nearest value of the axis that passes; empty: none does
};

// An axis for families: how a space is restricted to one of its values, and which a plan has.
struct FamilyAxis {
  std::string name;
  std::vector<std::string> values;  // in growing order, where they have one
  std::function<SearchSpace(const SearchSpace& space, std::size_t value)> only;
  std::function<std::size_t(const Plan& plan)> value_of;
};

std::vector<PlanFamily> plan_families(const Job& job, const SearchSpace& space,
                                      const std::vector<FamilyAxis>& axes,
                                      const SearchOptions& options);

}  // namespace shardplan
