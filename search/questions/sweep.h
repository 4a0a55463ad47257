// One model over several clusters: the best plan of each, and the cheapest that reaches a target.
// What is left under the limit by a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/questions/find_max.h"
#include "search/walk/search.h"

namespace shardplan {

// What a run must reach; zero: not asked.
struct SweepTarget {
  double tokens_per_s = 0;  // of all GPUs together
  double tokens = 0;        // to train on
  double days = 0;          // for these tokens
  double cost_usd = 0;      // of these tokens

  bool is_given() const { return tokens_per_s > 0 || days > 0 || cost_usd > 0; }
};

// Measured over predicted step times: what a prediction may turn out to be.
struct StepTimeSpread {
  double low = 1;   // 10th percentile
  double high = 1;  // 90th
  std::int64_t num_runs = 0;
  std::string of;               // which runs
  std::int64_t least_gpus = 0;  // of any of them
  std::int64_t most_gpus = 0;
  std::vector<std::string> gpus = {};  // kinds that they ran on
};

enum class Reached { kYes, kWithinSpread, kNo };  // the whole interval, a part of it, none of it
inline constexpr std::array<NamedValue<Reached>, 3> kReached = {{
    {.value = Reached::kYes, .name = "yes"},
    {.value = Reached::kWithinSpread, .name = "maybe"},
    {.value = Reached::kNo, .name = "no"},
}};
constexpr const auto& names_of(Reached) {
  return kReached;
}

// One cluster and a plan, where any fits.
struct SweepPoint {
  Job job;
  std::int64_t plans_in_space = 0;
  std::optional<RankedPlan> best;   // the plan; nothing fits: none
  std::int64_t smallest_bytes = 0;  // allocated, of the plan with the least memory, then
  double tokens_per_s = 0;          // of all GPUs
  double low_tokens_per_s = 0;      // by the spread
  double high_tokens_per_s = 0;
  double days = 0;          // for the target's tokens; 0: none asked
  double usd_per_hour = 0;  // of all GPUs; 0: no price
  double cost_usd = 0;      // for the target's tokens; 0: no tokens or no price
  Reached reached = Reached::kNo;
};

// With the plan that is given.
SweepPoint planned_point(const Job& job, RankedPlan plan, const SweepTarget& target,
                         const StepTimeSpread& spread);
// With the fastest plan that fits.
SweepPoint sweep_point(const Job& job, const SearchSpace& space, const SearchOptions& options,
                       const SweepTarget& target, const StepTimeSpread& spread);

// Index of the cheapest that reaches the target, as a whole if any does, else within the spread: by
// cost of the tokens, else price an hour. For a cost target: the fastest. Clusters without a price
// stand behind all others: where none has one, the fewest GPUs.
std::optional<std::size_t> choose_cluster(const std::vector<SweepPoint>& points,
                                          const SweepTarget& target);

// What a plan leaves under the limit, and what would use it.
struct Headroom {
  std::int64_t left_bytes = 0;           // of the basis
  std::int64_t largest_micro_batch = 0;  // the number of microbatches stays; 0: none was found
  std::int64_t largest_sequence_length = 0;
};
std::vector<Headroom> headroom_of(const Job& job, const std::vector<RankedPlan>& plans,
                                  const SearchOptions& options);

}  // namespace shardplan
