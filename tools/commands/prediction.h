// What the estimator says about one plan, as one status: the `predicted` object of a case line.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "estimator/estimate.h"
#include "search/verdict/verdict.h"
#include "search/walk/search.h"

namespace shardplan {

enum class PredictedStatus { kFits, kTight, kDoesNotFit, kInvalid, kUnsupported, kError };
inline constexpr std::array<NamedValue<PredictedStatus>, 6> kPredictedStatuses = {{
    {.value = PredictedStatus::kFits, .name = "fits"},
    {.value = PredictedStatus::kTight, .name = "tight"},
    {.value = PredictedStatus::kDoesNotFit, .name = "does_not_fit"},
    {.value = PredictedStatus::kInvalid, .name = "invalid"},
    {.value = PredictedStatus::kUnsupported, .name = "unsupported"},
    {.value = PredictedStatus::kError, .name = "error"},
}};
constexpr const auto& names_of(PredictedStatus) {
  return kPredictedStatuses;
}

// fits: what the allocator reserves, and all outside it, is on the card. tight: only what it cannot
// give back is. does_not_fit: not even that. No rule beside the card plays a part.
PredictedStatus status_of(Fit fit);
// Why not kFits; one line, else "".
std::string fit_reason(const Job& job, const MemoryEstimate& memory);

struct Prediction {
  PredictedStatus status = PredictedStatus::kError;
  std::string reason;          // why not "fits", or which rule that was asked for is broken
  MemoryEstimate memory = {};  // no stages when invalid, unsupported, error
  StepTime time = {};
  std::optional<Judgement> judged = std::nullopt;  // where there are numbers

  bool has_numbers() const { return !memory.stages.empty(); }
};

Prediction predict(const Job& job, const Plan& plan, const MemoryRule& rule);

// "80 % of the nominal 141 GB": what a basis is held against (memory_limit_bytes).
std::string limit_text(const ClusterSpec& cluster, const MemoryRule& rule);
std::string share_text(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);

bool is_negative(PredictedStatus status);  // the plan does not run

// A search that keeps the rule.
SearchOptions search_options(const MemoryRule& rule);

}  // namespace shardplan
