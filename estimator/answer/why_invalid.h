// Which plans a framework accepts: named rules, cheapest first.
#pragma once

#include <optional>
#include <span>

#include "estimator/plan/job.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// The rules of the job's profile, in the order in which they are tried.
std::span<const ValidityRule> validity_rules(const FrameworkProfile& profile);

// Nothing for a valid plan, else the first broken rule.
std::optional<InvalidReason> why_invalid(const Job& job, const Plan& plan);

// The first broken rule without a message; nullptr for a valid plan. For search.
const ValidityRule* first_broken_rule(const Job& job, const Plan& plan);

}  // namespace shardplan
