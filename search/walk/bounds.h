// Bounds: what shows, before its plans are visited, that no plan of a branch can be an answer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "estimator/price/fitting_floor.h"
#include "estimator/price/memory_floor.h"
#include "estimator/price/time_floor.h"
#include "search/space/census.h"
#include "search/walk/rank.h"
#include "search/walk/search.h"

namespace shardplan {

// The floors of estimator/price (memory_floor.h, time_floor.h, fitting_floor.h): no plan of the
// branch has less. Cheapest first.
enum class Bound {
  kComputeTooSlow,        // compute alone takes too long for any plan of the branch to be an answer
  kStepTooSlow,           // with bubble, communication and optimizer it does
  kStateOverLimit,        // parameters, gradients and optimizer state alone are over the limit
  kActivationsOverLimit,  // state with the least activations is over the limit
};
inline constexpr std::array<NamedValue<Bound>, 4> kBounds = {{
    {.value = Bound::kComputeTooSlow, .name = "compute_too_slow"},
    {.value = Bound::kStepTooSlow, .name = "step_too_slow"},
    {.value = Bound::kStateOverLimit, .name = "state_over_limit"},
    {.value = Bound::kActivationsOverLimit, .name = "activations_over_limit"},
}};
constexpr const auto& names_of(Bound) {
  return kBounds;
}
inline constexpr std::size_t kNumBounds = kBounds.size();

// What the search has found so far: a branch that cannot add to it is cut.
struct Answers {
  Best top;
  Front front;
  bool wants_front = false;
  double least_tokens_per_s_per_gpu = 0;
  bool admits_any(const Candidate& candidate) const {
    return candidate.price.tokens_per_s_per_gpu >= least_tokens_per_s_per_gpu &&
           (top.admits_any(candidate) || (wants_front && front.admits(candidate)));
  }
};

// The floors of one thread. They exist for prefixes from kFirstFloor on: the sizes that decide how
// the model is cut are chosen there.
inline constexpr std::size_t kFirstFloor = 7;  // the axes before micro_batch

class Bounds {
 public:
  Bounds(const Job& job, const SettledRules& rules, std::int64_t limit_bytes, PriceTable& table);

  // Whether a floor at this depth is worth its cost.
  bool has(std::size_t depth) const { return levels_[depth].has_value(); }
  // The bound that shows that no plan below the prefix can be among the answers.
  // `known`: its time floor, where that was asked for before.
  std::optional<Bound> cuts(const Prefix& prefix, const Answers& answers, const TimeFloor* known);
  // The bound that shows that no plan below the prefix fits.
  std::optional<Bound> over_limit(const Prefix& prefix);
  // What plans below the prefix have at least; 0 where there is no floor. Looks no further once
  // that is more than `enough`: what is quickly known, as weights are, comes first.
  std::int64_t allocated_floor(const Prefix& prefix, std::int64_t enough);
  TimeFloor time(const Prefix& prefix);
  double tokens_per_s(double step_time_s) const;

 private:
  const Plan& plan_of(const Prefix& prefix);
  std::optional<Bound> cuts_states(const Prefix& prefix, std::size_t level, const Answers& answers);

  const Job* job_;
  std::int64_t limit_bytes_;
  PriceTable* table_;
  Plan plan_;
  std::array<std::optional<std::size_t>, kNumAxes + 1> levels_{};  // numbers of freedoms
};

}  // namespace shardplan
