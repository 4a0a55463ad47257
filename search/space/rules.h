// Plans that an earlier plan of the space stands for: they differ in a choice without effect.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/validity/validity.h"
#include "search/space/search_space.h"

namespace shardplan {

// Rules of a profile, by pointer.
using RuleList = std::vector<const ValidityRule*>;

struct EquivalenceRule {
  std::string_view name;  // "cp_method_without_cp"
  PlanField axis;         // the field in which both plans differ
  PlanFields reads;       // what decides whether two values of the axis mean the same
  // For a valid plan: the first valid one whose value on the axis comes before and means the same.
  // Of the profile's rules only those can break it that read the axis: `rules`.
  std::optional<Plan> (*earlier_twin)(const Job& job, const SearchSpace& space, const Plan& plan,
                                      const RuleList& rules);
};

std::span<const EquivalenceRule> equivalence_rules();

// The rules of the job's profile that read the field.
RuleList rules_that_read(const Job& job, PlanField field);

// The first rule by which an earlier valid plan of the space has the same memory and the same time
// as this valid plan; nullptr if there is none.
const EquivalenceRule* first_equivalence(const Job& job, const SearchSpace& space,
                                         const Plan& plan);

}  // namespace shardplan
