// Walks the values that a branch of a search leaves open.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "estimator/price/pieces.h"

namespace shardplan {

// Of a branch without valid plans.
inline constexpr std::int64_t kNoBytes = std::numeric_limits<std::int64_t>::max();
inline constexpr double kNoTime = std::numeric_limits<double>::infinity();
// A step's parts are added in another order than a floor's: more than what that can round away.
inline constexpr double kRounding = 1 - 1e-12;

// visit(value) for every value of an axis.
template <class Value, class Visit>
void each(const std::vector<Value>& open, Value& axis, const Visit& visit) {
  const Value own = axis;
  if (open.empty()) {
    visit();
  }
  for (const Value& value : open) {
    axis = value;
    visit();
  }
  axis = own;
}
template <class Visit>
void each(const std::vector<bool>& open, bool& axis, const Visit& visit) {
  const bool own = axis;
  if (open.empty()) {
    visit();
  }
  for (const bool value : open) {
    axis = value;
    visit();
  }
  axis = own;
}

// The branch's smallest optimizer: moments and main parameters.
void choose_smallest_optimizer(const PriceFreedom& open, Plan& plan);
// The state of these without what they have and larger types may not have, where types are open:
// copies of the optimizer step, and ends of blocks.
StateBytes least_state(const PriceFreedom& open, const StateBytes& state);

// The same for gradients.
void choose_smallest_gradients(const PriceFreedom& open, Plan& plan);

// What is left of a key once free axes are taken out of it.
PieceKey<8> floor_key(PricePieces& pieces, const Plan& plan, std::size_t freedom);

// Whether the ranks of the plan fall into whole groups.
bool has_groups(const Job& job, const Plan& plan);

// Whether a valid plan may have these sizes of a microbatch and this schedule.
bool can_run(const PricePieces& pieces, const Plan& plan);

// visit() for all choices of a microbatch that the branch leaves open; `at` holds them.
template <class Visit>
void each_microbatch(const PriceFreedom& open, Plan& at, const Visit& visit) {
  each(open.micro_batch, at.micro_batch, [&] {
    each(open.sequence_parallel, at.sequence_parallel, [&] {
      each(open.cp_method, at.cp_method,
           [&] { each(open.precision, at.precision, [&] { visit(); }); });
    });
  });
}

// Of those the ones that can run.
template <class Visit>
void each_block(const PricePieces& pieces, const PriceFreedom& open, Plan& at, const Visit& visit) {
  each_microbatch(open, at, [&] {
    if (can_run(pieces, at)) {
      visit();
    }
  });
}

// Whether some value of the open axes lets the schedule run.
bool runs_schedule(const PricePieces& pieces, const PriceFreedom& open, Plan at);

inline std::size_t num_values(const auto& values) {
  return std::max<std::size_t>(values.size(), 1);
}

// Blocks of the branch that keep different activations.
inline std::size_t num_blocks(const PriceFreedom& open) {
  return num_values(open.micro_batch) * num_values(open.sequence_parallel) *
         num_values(open.cp_method) * num_values(open.precision);
}

// visit(plan) for every schedule of the branch that can run, the pieces set to it. The least share
// of dp_replicate stands for all.
template <class Visit>
void each_running_schedule(PricePieces& pieces, const Plan& plan, const PriceFreedom& open,
                           const Visit& visit) {
  Plan at = plan;
  if (!open.dp_replicate.empty()) {
    at.dp_replicate = 1;
  }
  each(open.schedule, at.schedule, [&] {
    if (runs_schedule(pieces, open, at)) {
      pieces.begin(at);
      visit(at);
    }
  });
}

// Whether any plan below has layers in its chunks and ranks in its groups: before all that follows.
bool can_be_valid(const PricePieces& pieces, const Plan& plan, const PriceFreedom& open);

}  // namespace shardplan
