#include "estimator/plan/in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardplan {
namespace {

bool dominates(const InFlightState& a, const InFlightState& b) {
  return a.action == b.action && a.chunk == b.chunk && a.reduces == b.reduces &&
         a.gathers == b.gathers && all_at_least(a.saved, b.saved) &&
         all_at_least(a.pending_weight, b.pending_weight) &&
         all_at_least(a.has_gradients, b.has_gradients) && all_at_least(a.gathered, b.gathered) &&
         all_at_least(a.reduced, b.reduced);
}

// States that no other dominates, in the order in which they came. Only states of the same action
// and chunk are compared.
class Peaks {
 public:
  explicit Peaks(std::size_t chunks) : chunks_(chunks), kept_(kNumActionKinds * chunks) {}

  void offer(const InFlightState& state) {
    ++time_;
    std::vector<Timed>& kept = kept_[static_cast<std::size_t>(state.action) * chunks_ +
                                     static_cast<std::size_t>(state.chunk)];
    const auto covers = [&](const Timed& other) { return dominates(other.state, state); };
    const auto is_covered = [&](const Timed& other) { return dominates(state, other.state); };
    if (std::ranges::any_of(kept, covers)) {
      return;
    }
    const auto room = std::ranges::find_if(kept, is_covered);
    if (room == kept.end()) {
      kept.push_back({.time = time_, .state = state});
      return;
    }
    room->time = time_;
    room->state = state;
    kept.erase(std::remove_if(room + 1, kept.end(), is_covered), kept.end());
  }

  std::vector<InFlightState> in_order() {
    std::vector<Timed> all;
    for (std::vector<Timed>& kept : kept_) { std::ranges::move(kept, std::back_inserter(all)); }
    std::ranges::sort(all, {}, &Timed::time);
    std::vector<InFlightState> states;
    states.reserve(all.size());
    for (Timed& each : all) { states.push_back(std::move(each.state)); }
    return states;
  }

 private:
  struct Timed {
    std::int64_t time = 0;
    InFlightState state;
  };
  std::size_t chunks_;
  std::vector<std::vector<Timed>> kept_;  // by action, then by chunk
  std::int64_t time_ = 0;
};

// GPipe grows with the microbatches: all forwards, then all backwards, chunk by chunk. The first
// backward of a chunk sees the most; so does the last forward. The second backward is the first
// that finds gradients.
std::vector<InFlightState> gpipe_peaks(const ScheduleShape& shape) {
  const std::size_t chunks = static_cast<std::size_t>(shape.vpp);
  std::vector<InFlightState> states;
  std::vector<std::int64_t> saved(chunks, 0);
  const std::vector<std::int64_t> none(chunks, 0);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    saved[chunk] = shape.num_microbatches - 1;
    for (const ActionKind action : {ActionKind::kForward, ActionKind::kBackward}) {
      states.push_back({.action = action,
                        .chunk = static_cast<std::int64_t>(chunk),
                        .saved = saved,
                        .pending_weight = none,
                        .has_gradients = none});
    }
    if (shape.tells_gradients && shape.num_microbatches > 1) {
      InFlightState second = states.back();
      --second.saved[chunk];
      second.has_gradients[chunk] = 1;
      states.push_back(second);
    }
    saved[chunk] = shape.num_microbatches;
  }
  return states;
}

// The next three chunks that compute from the action on (torch.distributed.pipelining schedules.py,
// _add_unshard_reshard): their parameters are gathered, those of others dropped.
std::vector<std::int64_t> next_chunks(const ScheduleShape& shape,
                                      std::span<const ScheduleAction> actions, std::size_t first) {
  constexpr std::int64_t kActive = 3;
  std::vector<std::int64_t> next(static_cast<std::size_t>(shape.vpp), 0);
  std::int64_t active = 0;
  for (std::size_t i = first; i < actions.size() && active < std::min(kActive, shape.vpp); ++i) {
    active += 1 - std::exchange(next[static_cast<std::size_t>(actions[i].chunk)], 1);
  }
  return next;
}

// Which chunks' parameters are gathered, along the actions of a rank.
class Gathered {
 public:
  explicit Gathered(const ScheduleShape& shape)
      : shape_(shape),
        active_(static_cast<std::size_t>(shape.vpp), 0),
        whole_(static_cast<std::size_t>(shape.vpp), 0) {}

  void begin(std::span<const ScheduleAction> actions, std::size_t i) {
    const std::vector<std::int64_t> next = next_chunks(shape_, actions, i);
    const bool become_whole = row_of(shape_.schedule).gathers_ahead || !shape_.reshards_forward;
    for (std::size_t chunk = 0; chunk < next.size(); ++chunk) {
      const bool is_new = active_[chunk] == 0;
      whole_[chunk] = next[chunk] == 0 ? 0 : is_new && become_whole ? 1 : whole_[chunk];
    }
    active_ = next;
  }
  // A forward that reshards has one block gathered, and so has at first the backward behind it,
  // which leaves all of them so. What is whole when such a forward begins has been counted at the
  // end of the backward before.
  void set(const ScheduleAction& action, InFlightState& now) const {
    const std::size_t chunk = static_cast<std::size_t>(action.chunk);
    const bool is_forward = action.kind == ActionKind::kForward;
    const bool makes = !is_forward && now.has_gradients[chunk] == 0;
    now.gathered = whole_;
    now.gathers = shape_.reshards_forward && !is_forward &&
                  action.kind != ActionKind::kBackwardWeight && (makes || whole_[chunk] == 0);
    if (shape_.reshards_forward && (is_forward || now.gathers)) {
      now.gathered[chunk] = 0;
    }
  }
  void end(const ScheduleAction& action) {
    if (shape_.reshards_forward) {
      whole_[static_cast<std::size_t>(action.chunk)] = action.kind == ActionKind::kForward ? 0 : 1;
    }
  }

 private:
  const ScheduleShape& shape_;
  std::vector<std::int64_t> active_;
  std::vector<std::int64_t> whole_;
};

}  // namespace

InFlightState none_in_flight(std::size_t num_chunks) {
  InFlightState now;
  now.saved.assign(num_chunks, 0);
  now.pending_weight.assign(num_chunks, 0);
  now.has_gradients.assign(num_chunks, 0);
  return now;
}

void begin_action(const ScheduleAction& action, InFlightState& now) {
  const std::size_t chunk = static_cast<std::size_t>(action.chunk);
  const bool ends_saving =
      action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  now.action = action.kind;
  now.chunk = action.chunk;
  now.saved[chunk] -= ends_saving ? 1 : 0;
  now.pending_weight[chunk] -= action.kind == ActionKind::kBackwardWeight ? 1 : 0;
}

void end_action(const ScheduleShape& shape, const ScheduleAction& action, InFlightState& now) {
  const std::size_t chunk = static_cast<std::size_t>(action.chunk);
  now.saved[chunk] += action.kind == ActionKind::kForward ? 1 : 0;
  now.pending_weight[chunk] += action.kind == ActionKind::kBackwardInput ? 1 : 0;
  now.has_gradients[chunk] |= makes_gradients(shape, action.kind) ? 1 : 0;
}

bool makes_gradients(const ScheduleShape& shape, ActionKind action) {
  return shape.tells_gradients &&
         (action == ActionKind::kBackward || action == ActionKind::kBackwardWeight);
}

// The running chunk's parameters and gradients are not counted where those are reduced.
std::vector<InFlightState> parameter_states(const ScheduleShape& shape, std::int64_t pp_rank) {
  const std::vector<ScheduleAction> actions = schedule_actions(shape, pp_rank);
  Gathered gathered(shape);
  std::vector<std::size_t> last(static_cast<std::size_t>(shape.vpp), 0);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    last[static_cast<std::size_t>(actions[i].chunk)] = i;
  }
  std::vector<InFlightState> states;
  InFlightState now = none_in_flight(last.size());
  now.reduced = now.saved;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::size_t chunk = static_cast<std::size_t>(actions[i].chunk);
    gathered.begin(actions, i);
    gathered.set(actions[i], now);
    begin_action(actions[i], now);
    states.push_back(now);
    end_action(shape, actions[i], now);
    gathered.end(actions[i]);
    now.gathers = false;
    if (i == last[chunk]) {
      now.has_gradients[chunk] = 0;
      now.gathered[chunk] = 0;
      states.push_back(now);
      states.back().reduces = true;
      now.reduced[chunk] = 1;
    }
  }
  return states;
}

std::vector<InFlightState> peak_in_flight_states(const ScheduleShape& shape, std::int64_t pp_rank) {
  const std::size_t chunks = static_cast<std::size_t>(shape.vpp);
  Peaks peaks(chunks);
  if (shape.tells_parameters) {
    for (const InFlightState& state : parameter_states(shortest_equivalent(shape), pp_rank)) {
      peaks.offer(state);
    }
    return peaks.in_order();
  }
  if (row_of(shape.schedule).group == MicrobatchGroup::kAll) {
    return gpipe_peaks(shape);
  }
  InFlightState now = none_in_flight(chunks);
  for (const ScheduleAction& action : first_actions(shape, pp_rank)) {
    begin_action(action, now);
    peaks.offer(now);
    end_action(shape, action, now);
  }
  return peaks.in_order();
}

}  // namespace shardplan
