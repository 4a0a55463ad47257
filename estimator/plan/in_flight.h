// What a rank of a pipeline has in flight at each action of its schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "estimator/plan/schedule.h"

namespace shardplan {

// What a rank holds while one action runs: per local chunk, the microbatches whose forward is done
// and whose backward (or backward-input) has not begun, and those whose weight gradient is pending.
// The microbatch of the running action itself is counted in neither.
struct InFlightState {
  ActionKind action = ActionKind::kForward;
  std::int64_t chunk = 0;
  std::vector<std::int64_t> saved = {};           // per local chunk
  std::vector<std::int64_t> pending_weight = {};  // per local chunk
  // 1: an earlier action made the chunk's gradients; always 0 unless the shape tells_gradients.
  std::vector<std::int64_t> has_gradients = {};  // per local chunk
  // Where the shape tells_parameters, else empty; per local chunk. 1: gathered; 1: the gradients
  // are reduced, and counted here in place of has_gradients.
  std::vector<std::int64_t> gathered = {};
  std::vector<std::int64_t> reduced = {};
  bool reduces = false;  // the chunk's gradients, behind its last action
  bool gathers = false;  // a backward that gathers the chunk's parameters block by block
  friend bool operator==(const InFlightState&, const InFlightState&) = default;
};

// Counts along the actions of a rank: nothing in flight, the state while an action runs, and the
// one behind it.
InFlightState none_in_flight(std::size_t num_chunks);
void begin_action(const ScheduleAction& action, InFlightState& now);
void end_action(const ScheduleShape& shape, const ScheduleAction& action, InFlightState& now);

// Whether no count of `one` is below the same one of `other`.
inline bool all_at_least(std::span<const std::int64_t> one, std::span<const std::int64_t> other) {
  return std::ranges::equal(one, other, std::ranges::greater_equal{});
}

// Whether after this action the chunk's gradients exist and are told apart.
bool makes_gradients(const ScheduleShape& shape, ActionKind action);

// Every state of a shape that tells_parameters, and behind a chunk's last action the one in which
// its gradients are reduced.
std::vector<InFlightState> parameter_states(const ScheduleShape& shape, std::int64_t pp_rank);

// The states of the schedule that no other state of the same (action, chunk) dominates in every
// count: the peak of a step lies at one of them. Bounded work for any number of microbatches.
std::vector<InFlightState> peak_in_flight_states(const ScheduleShape& shape, std::int64_t pp_rank);

}  // namespace shardplan
