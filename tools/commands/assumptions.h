// What an answer takes for granted, and whether another choice would turn the verdict.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tools/commands/prediction.h"
#include "tools/options/question.h"

namespace shardplan {

enum class AssumptionKind {
  kEstimator,         // of the model of memory and time
  kAssumed,           // chosen here: the framework itself has another default, or none
  kFrameworkDefault,  // what the framework does where nobody says otherwise
};
inline constexpr std::array<NamedValue<AssumptionKind>, 3> kAssumptionKinds = {{
    {.value = AssumptionKind::kEstimator, .name = "estimator"},
    {.value = AssumptionKind::kAssumed, .name = "assumed"},
    {.value = AssumptionKind::kFrameworkDefault, .name = "framework_default"},
}};
constexpr const auto& names_of(AssumptionKind) {
  return kAssumptionKinds;
}

struct StatedAssumption {
  AssumptionKind kind = AssumptionKind::kEstimator;
  std::string text;      // "zero: 1 (assumed; default of megatron: 0; fits with 2)"
  std::string in_short;  // "zero: 1 (0)"; of the estimator's: the text
  bool decides = false;  // another value turns the verdict
};

// The estimator's assumptions, then the plan's fields and the framework's switches that the user
// or the run's file left open. One decides if one of its other values is valid and turns "fits"
// into "does not fit" or back.
std::vector<StatedAssumption> assumptions_of(const Question& question, const Library& library,
                                             const Prediction& prediction, const MemoryRule& rule);

}  // namespace shardplan
