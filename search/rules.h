// Plans that an earlier plan of the space stands for: they differ in a choice without effect.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "estimator/job.h"
#include "search/search.h"

namespace shardplan {

struct EquivalenceRule {
  std::string_view name;  // "cp_method_without_cp"
  // For a valid plan: the first valid one whose value on the rule's axis comes before and means the
  // same.
  std::optional<Plan> (*earlier_twin)(const Job& job, const SearchSpace& space, const Plan& plan);
};

std::span<const EquivalenceRule> equivalence_rules();

// The first rule by which an earlier valid plan of the space has the same memory and the same time
// as this valid plan; nullptr if there is none.
const EquivalenceRule* first_equivalence(const Job& job, const SearchSpace& space,
                                         const Plan& plan);

}  // namespace shardplan
