#include "estimator/validity/validity.h"

#include <stdexcept>

#include "estimator/validity/profiles.h"

namespace shardplan {

std::span<const ValidityRule> validity_rules(const FrameworkProfile& profile) {
  switch (profile.memory_model) {
    case MemoryModel::kFujii2024: return fujii2024_validity_rules();
    case MemoryModel::kMegatron: return megatron_validity_rules();
    case MemoryModel::kMegatronLocal: return megatron_local_validity_rules();
    case MemoryModel::kNative: return native_validity_rules();
    case MemoryModel::kTorchtitan: return torchtitan_validity_rules();
    case MemoryModel::kNanotron: return nanotron_validity_rules();
    case MemoryModel::kDeepspeed: return deepspeed_validity_rules();
  }
  throw std::logic_error("validity_rules: unknown memory model");
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
