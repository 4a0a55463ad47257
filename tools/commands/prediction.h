// What the estimator says about one plan, as one status: the `predicted` object of a case line.
#pragma once

#include <array>
#include <string>

#include "estimator/estimate.h"
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
// give back is. does_not_fit: not even that.
PredictedStatus status_of(Fit fit);
// Why not kFits; one line, else "".
std::string fit_reason(const Job& job, const MemoryEstimate& memory);

struct Prediction {
  PredictedStatus status = PredictedStatus::kError;
  std::string reason;          // why not "fits"; one line
  MemoryEstimate memory = {};  // no stages when invalid, unsupported, error
  StepTime time = {};

  bool has_numbers() const { return !memory.stages.empty(); }
};

// How the memory of a plan is judged: by the card alone, or by a share of it besides.
struct MemoryRule {
  SearchOptions share;           // threshold and basis
  bool decides_verdict = false;  // the user asked for it; else it is only printed
};

Prediction predict(const Job& job, const Plan& plan, const MemoryRule& rule);

// The paper's rule or the user's: whether the plan keeps to its share of the memory.
bool keeps_share(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);
// "80 % of the nominal 141 GB": what a basis is held against (memory_limit_bytes).
std::string limit_text(const ClusterSpec& cluster, const SearchOptions& share);
std::string share_text(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);

bool is_negative(PredictedStatus status);  // exit code 1

}  // namespace shardplan
