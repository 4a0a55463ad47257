// The one verdict on the memory of a plan, for every command and format.
//
// C is what the driver says the card has, less what others hold of it. R is what the allocator
// cannot give back and all that lies outside it, D is device used; both are of the fullest stage:
//
//   does not fit   R > C
//   tight          R <= C < D: the run lives only because the allocator gives cached memory back
//   over           D <= C, and a total is above its share of the memory, the rule
//   fits           D <= C, and the rule is kept
#pragma once

#include <array>
#include <cstdint>

#include "estimator/estimate.h"
#include "estimator/plan/job.h"

namespace shardplan {

// Which of the four totals a rule is for, and which capacity it is a share of: allocated has the
// nominal (decimal) one, as in arXiv 2411.06465; the others have what the driver reports.
enum class MemoryBasis { kAllocated, kReserved, kRequired, kDeviceUsed };

// The share of a GPU's memory that a plan may use.
struct MemoryRule {
  double threshold = 0.80;
  MemoryBasis basis = MemoryBasis::kAllocated;
  bool is_asked = false;  // the user gave it: to break it is a negative answer
};

// No rule beside the card: every plan that the card holds keeps this one.
inline constexpr MemoryRule kCardAlone = {.threshold = 1, .basis = MemoryBasis::kRequired};

// Bytes that a plan may use, rounded down.
std::int64_t memory_limit_bytes(const ClusterSpec& cluster, const MemoryRule& rule);

std::int64_t basis_bytes(const StageMemory& stage, MemoryBasis basis);
// The basis total of the stage that has most of it.
std::int64_t basis_bytes(const MemoryEstimate& memory, MemoryBasis basis);

struct RuleCheck {
  std::int64_t value_bytes = 0;
  std::int64_t limit_bytes = 0;
  bool kept() const { return value_bytes <= limit_bytes; }
};
RuleCheck check_rule(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);

// The better first.
enum class MemoryVerdict { kFits, kOver, kTight, kDoesNotFit };
inline constexpr std::array<NamedValue<MemoryVerdict>, 4> kMemoryVerdicts = {{
    {.value = MemoryVerdict::kFits, .name = "fits"},
    {.value = MemoryVerdict::kOver, .name = "over"},
    {.value = MemoryVerdict::kTight, .name = "tight"},
    {.value = MemoryVerdict::kDoesNotFit, .name = "does_not_fit"},
}};
constexpr const auto& names_of(MemoryVerdict) {
  return kMemoryVerdicts;
}

struct Judgement {
  MemoryVerdict verdict = MemoryVerdict::kDoesNotFit;
  MemoryRule rule;
  RuleCheck check;
  std::int64_t left_bytes = 0;  // of the card by the fullest stage; negative: what it lacks
};
Judgement judge_memory(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);

// Its verdict alone.
MemoryVerdict verdict_of(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule);

}  // namespace shardplan
