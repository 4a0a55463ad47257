// The shape of a rule by which a framework refuses a plan.
#pragma once

#include <string>
#include <string_view>

#include "estimator/plan/fields.h"
#include "estimator/plan/job.h"

namespace shardplan {

// One rule. `broken` costs nanoseconds and allocates nothing; `explain` names both numbers and the
// values that would be valid, and is called only for broken rules. Search settles a rule as soon as
// the fields that it reads are chosen, for all plans that share them.
struct ValidityRule {
  std::string_view name;  // "heads_divisible_by_tp"; "unsupported: offload.activations"
  PlanFields reads = PlanFields::all();  // what `broken` looks at: no other field can change it
  bool field_by_field = false;           // one field breaks it, whatever the others are
  bool (*broken)(const Job& job, const Plan& plan);
  std::string (*explain)(const Job& job, const Plan& plan);
};

struct InvalidReason {
  std::string rule;
  std::string message;  // one line: both numbers and the values that would be valid
};

}  // namespace shardplan
