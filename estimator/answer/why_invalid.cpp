#include "estimator/answer/why_invalid.h"

#include "estimator/frameworks/framework.h"

namespace shardplan {

std::span<const ValidityRule> validity_rules(const FrameworkProfile& profile) {
  return framework_of(profile).rules();
}

const ValidityRule* first_broken_rule(const Job& job, const Plan& plan) {
  for (const ValidityRule& rule : validity_rules(job.profile)) {
    if (rule.broken(job, plan)) {
      return &rule;
    }
  }
  return nullptr;
}

std::optional<InvalidReason> why_invalid(const Job& job, const Plan& plan) {
  const ValidityRule* rule = first_broken_rule(job, plan);
  if (rule == nullptr) {
    return std::nullopt;
  }
  return InvalidReason{.rule = std::string(rule->name), .message = rule->explain(job, plan)};
}

}  // namespace shardplan
