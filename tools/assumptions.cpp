#include "tools/assumptions.h"

#include <algorithm>
#include <string>

#include "tools/plan_words.h"

namespace shardplan {
namespace {

// One field that frameworks have defaults for: its value as text, and the plans with its other
// values.
struct DefaultField {
  std::string_view name;
  std::string (*text)(const Plan& plan);
  std::vector<Plan> (*others)(const Plan& plan);
};

std::vector<Plan> other_zero_stages(const Plan& plan) {
  std::vector<Plan> plans;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    plans.push_back(plan);
    plans.back().zero = zero;
  }
  return plans;
}

std::vector<Plan> other_sequence_parallel(const Plan& plan) {
  Plan other = plan;
  other.sequence_parallel = !plan.sequence_parallel;
  return {other};
}

std::vector<Plan> other_schedules(const Plan& plan) {
  std::vector<Plan> plans;
  for (const auto& row : kSchedules) {
    plans.push_back(plan);
    plans.back().schedule = row.value;
  }
  return plans;
}

std::vector<Plan> other_recomputes(const Plan& plan) {
  std::vector<Plan> plans(2, plan);
  plans[0].recompute = {.granularity = RecomputeGranularity::kFull};
  plans[1].recompute = {.granularity = RecomputeGranularity::kSelective,
                        .modules = {.core_attn = true}};
  return plans;
}

std::vector<Plan> other_grad_dtypes(const Plan& plan) {
  std::vector<Plan> plans(2, plan);
  plans[0].grad_dtype = DType::kFp32;
  plans[1].grad_dtype = DType::kBf16;
  return plans;
}

const std::array<DefaultField, 5> kDefaultFields = {{
    {.name = "zero",
     .text = [](const Plan& plan) { return std::to_string(plan.zero); },
     .others = other_zero_stages},
    {.name = "sequence_parallel",
     .text = [](const Plan& plan) { return std::string(plan.sequence_parallel ? "on" : "off"); },
     .others = other_sequence_parallel},
    {.name = "schedule",
     .text = [](const Plan& plan) { return std::string(name_of(plan.schedule)); },
     .others = other_schedules},
    {.name = "recompute",
     .text = [](const Plan& plan) { return recompute_text(plan.recompute); },
     .others = other_recomputes},
    {.name = "grad_dtype",
     .text = [](const Plan& plan) { return std::string(name_of(plan.grad_dtype)); },
     .others = other_grad_dtypes},
}};

// The text of the first other value that is valid and turns the verdict; "" if none does.
std::string turning_value(const Question& question, const DefaultField& field,
                          PredictedStatus verdict, const MemoryRule& rule) {
  for (const Plan& other : field.others(question.plan)) {
    if (other == question.plan || first_broken_rule(question.job, other) != nullptr) {
      continue;
    }
    if (is_negative(predict(question.job, other, rule).status) != is_negative(verdict)) {
      return field.text(other);
    }
  }
  return "";
}

}  // namespace

std::vector<Assumption> assumptions_of(const Question& question, const Prediction& prediction,
                                       const MemoryRule& rule) {
  std::vector<Assumption> assumptions = prediction.memory.assumptions;
  if (!prediction.has_numbers()) {
    return assumptions;
  }
  for (const DefaultField& field : kDefaultFields) {
    const bool is_given =
        std::find(question.given.begin(), question.given.end(), field.name) != question.given.end();
    if (is_given) {
      continue;
    }
    const std::string turning = turning_value(question, field, prediction.status, rule);
    std::string text = std::string(field.name) + ": " + field.text(question.plan) + " (default";
    if (!turning.empty()) {
      text += is_negative(prediction.status) ? "; fits with " : "; does not fit with ";
      text += turning;
    }
    assumptions.push_back({.text = text + ")", .decides = !turning.empty()});
  }
  return assumptions;
}

}  // namespace shardplan
