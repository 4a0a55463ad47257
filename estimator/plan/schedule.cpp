#include "estimator/plan/schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace shardplan {
namespace {

// Every looping schedule is one pattern with four numbers. A unit is one (chunk, microbatch); a
// rank runs its units in groups: `group` microbatches of chunk 0, the same of chunk 1, ...
struct Pattern {
  std::int64_t group = 1;         // microbatches of one chunk in a row
  std::int64_t warmup_units = 0;  // forwards before the first backward
  std::int64_t delay_units = 0;   // split backward: backwards before the first weight gradient
  bool splits_backward = false;
};

// torch.distributed.pipelining (schedules.py, microbatches_per_round): as many rounds as whole
// groups of pp fit into the microbatches.
std::int64_t microbatches_per_round(const ScheduleShape& shape) {
  return shape.num_microbatches / std::max<std::int64_t>(1, shape.num_microbatches / shape.pp);
}

// Warm-up counts. 1F1B: p - r - 1 (Megatron-LM core/pipeline_parallel/schedules.py). Interleaved:
// (p - r - 1) * 2 + (v - 1) * group (the same file, get_pp_rank_microbatches). Zero bubble:
// (p - r - 1) + (v - 1) * group, and rank r runs r backwards before its first weight gradient, so
// that saved and pending together stay at p on every rank (arXiv 2401.10241, ZB-H1;
// torch.distributed.pipelining, ScheduleInterleavedZeroBubble).
Pattern pattern_of(const ScheduleShape& shape, std::int64_t pp_rank) {
  const std::int64_t hops = shape.pp - pp_rank - 1;
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const std::int64_t group = microbatch_group(shape);
  const std::int64_t earlier_chunks = (shape.vpp - 1) * group;
  switch (shape.schedule) {
    case Schedule::kNone: return {.group = group};
    case Schedule::kGpipe: return {.group = group, .warmup_units = units};
    case Schedule::k1F1B: return {.group = group, .warmup_units = std::min(hops, units)};
    case Schedule::kInterleaved1F1B:
      return {.group = group, .warmup_units = std::min(2 * hops + earlier_chunks, units)};
    case Schedule::kZbH1:
    case Schedule::kInterleavedZeroBubble:
      return {.group = group,
              .warmup_units = std::min(hops + earlier_chunks, units),
              .delay_units = pp_rank,
              .splits_backward = true};
    case Schedule::kZbv: break;
  }
  throw std::logic_error("pattern_of: not a looping schedule");
}

// The k-th unit that a rank runs forward; the last group may be smaller (Megatron-LM
// core/pipeline_parallel/schedules.py, get_schedule_table).
ScheduleAction forward_unit(const ScheduleShape& shape, std::int64_t group, std::int64_t k) {
  const std::int64_t first = k / (group * shape.vpp) * group;
  const std::int64_t size = std::min(group, shape.num_microbatches - first);
  const std::int64_t within = k % (group * shape.vpp);
  return {
      .kind = ActionKind::kForward, .chunk = within / size, .microbatch = first + within % size};
}

// The k-th unit that a rank runs backward: the same order with the chunks reversed.
ScheduleAction backward_unit(const ScheduleShape& shape, std::int64_t group, std::int64_t k,
                             ActionKind kind) {
  ScheduleAction action = forward_unit(shape, group, k);
  action.kind = kind;
  action.chunk = shape.vpp - 1 - action.chunk;
  return action;
}

// Calls visit(action) for the actions of a looping schedule in issue order, until `last_unit` units
// have run backward.
template <class Visit>
void visit_looping(const ScheduleShape& shape, const Pattern& pattern, std::int64_t last_unit,
                   const Visit& visit) {
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const ActionKind backward =
      pattern.splits_backward ? ActionKind::kBackwardInput : ActionKind::kBackward;
  for (std::int64_t k = 0; k < pattern.warmup_units; ++k) {
    visit(forward_unit(shape, pattern.group, k));
  }
  for (std::int64_t k = 0; k < last_unit; ++k) {
    if (k + pattern.warmup_units < units) {
      visit(forward_unit(shape, pattern.group, k + pattern.warmup_units));
    }
    visit(backward_unit(shape, pattern.group, k, backward));
    if (pattern.splits_backward && k >= pattern.delay_units) {
      visit(backward_unit(shape, pattern.group, k - pattern.delay_units,
                          ActionKind::kBackwardWeight));
    }
  }
  if (pattern.splits_backward && last_unit == units) {
    for (std::int64_t k = std::max<std::int64_t>(0, units - pattern.delay_units); k < units; ++k) {
      visit(backward_unit(shape, pattern.group, k, ActionKind::kBackwardWeight));
    }
  }
}

// Units that have run backward once nothing new can be in flight. From the first delayed weight
// gradient on the counts repeat with every round of `group` microbatches through all chunks, while
// forwards last; later actions hold no more than the same ones a round before. Where states tell
// gradients, all are made by the end of one round. Without a whole round: all units.
std::int64_t last_new_unit(const ScheduleShape& shape, const Pattern& pattern) {
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const std::int64_t round = pattern.group * shape.vpp;
  const std::int64_t last = pattern.delay_units + (shape.tells_gradients ? 2 : 1) * round;
  const bool repeats =
      shape.num_microbatches % pattern.group == 0 && last + pattern.warmup_units <= units;
  return repeats ? last : units;
}

// Counters of a rank of the V schedule: the next microbatch per kind and chunk. Microbatches beyond
// the real ones keep the pattern whole and are not visited.
template <class Visit>
class VCounters {
 public:
  VCounters(std::int64_t num_microbatches, const Visit& visit)
      : num_microbatches_(num_microbatches), visit_(visit) {}

  std::int64_t forwards(std::int64_t chunk) const { return next_[0][at(chunk)]; }
  std::int64_t inputs(std::int64_t chunk) const { return next_[1][at(chunk)]; }
  std::int64_t weights(std::int64_t chunk) const { return next_[2][at(chunk)]; }

  void forward(std::int64_t chunk) { issue(0, ActionKind::kForward, chunk); }
  void input(std::int64_t chunk) { issue(1, ActionKind::kBackwardInput, chunk); }
  void weight(std::int64_t chunk) { issue(2, ActionKind::kBackwardWeight, chunk); }
  void backward(std::int64_t chunk) {
    input(chunk);
    weight(chunk);
  }

 private:
  static std::size_t at(std::int64_t chunk) { return static_cast<std::size_t>(chunk); }
  void issue(std::size_t row, ActionKind kind, std::int64_t chunk) {
    const std::int64_t microbatch = next_[row][at(chunk)]++;
    if (microbatch < num_microbatches_) {
      visit_({.kind = kind, .chunk = chunk, .microbatch = microbatch});
    }
  }

  std::int64_t num_microbatches_;
  const Visit& visit_;
  std::array<std::array<std::int64_t, 2>, 3> next_{};
};

// Zero-bubble V (arXiv 2401.10241 section 6), in the order of torch.distributed.pipelining's
// ScheduleZBVZeroBubble: warm-up down and up the V, a steady state of F B W on either chunk, and a
// cool-down that runs input gradients first.
template <class Visit>
void visit_v(const ScheduleShape& shape, std::int64_t pp_rank, const Visit& visit) {
  const std::int64_t hops = shape.pp - pp_rank;
  const std::int64_t microbatches = std::max(2 * shape.pp - 1, shape.num_microbatches);
  VCounters<Visit> rank(shape.num_microbatches, visit);
  for (std::int64_t i = 0; i < 2 * hops - 1; ++i) { rank.forward(0); }
  for (std::int64_t i = 0; i < pp_rank; ++i) {
    rank.forward(1);
    rank.forward(0);
  }
  for (std::int64_t i = 0; i < hops; ++i) {
    rank.forward(1);
    rank.backward(1);
  }
  while (rank.forwards(1) < rank.forwards(0) || rank.forwards(0) < microbatches) {
    if (rank.forwards(0) < microbatches) {
      rank.forward(0);
    }
    rank.backward(0);
    rank.forward(1);
    rank.backward(1);
  }
  for (std::int64_t i = 0; i < pp_rank; ++i) {
    rank.input(0);
    rank.input(1);
  }
  for (std::int64_t i = 0; i < hops; ++i) { rank.backward(0); }
  while (rank.weights(1) < rank.inputs(1)) { rank.weight(1); }
  while (rank.weights(0) < rank.inputs(0)) { rank.weight(0); }
}

enum class Extent { kAll, kUntilNothingNew };

template <class Visit>
void visit_actions(const ScheduleShape& shape, std::int64_t pp_rank, Extent extent,
                   const Visit& visit) {
  if (shape.schedule == Schedule::kZbv) {
    visit_v(shape, pp_rank, visit);
    return;
  }
  const Pattern pattern = pattern_of(shape, pp_rank);
  const std::int64_t last_unit =
      extent == Extent::kAll ? shape.num_microbatches * shape.vpp : last_new_unit(shape, pattern);
  visit_looping(shape, pattern, last_unit, visit);
}

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

// Whether a list of actions gathers the parameters of whole chunks ahead; else blocks gather their
// own when they first run.
bool gathers_ahead(const ScheduleShape& shape) {
  return shape.schedule != Schedule::k1F1B && shape.schedule != Schedule::kGpipe;
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
    const bool become_whole = gathers_ahead(shape_) || !shape_.reshards_forward;
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

bool shards_in_pipeline(const Job& job, const Plan& plan) {
  return job.profile.layout.gathers_for_pipeline && plan.zero == 3 && plan.pp > 1;
}

bool reshards_in_pipeline(const Job& job, const Plan& plan) {
  return shards_in_pipeline(job, plan) &&
         job.profile.reshard_after_forward == ReshardAfterForward::kAlways;
}

bool delays_weight_gradients(Schedule schedule) {
  return schedule == Schedule::kZbH1 || schedule == Schedule::kInterleavedZeroBubble ||
         schedule == Schedule::kZbv;
}

ScheduleShape schedule_shape(const Job& job, const Plan& plan) {
  return {.schedule = plan.schedule,
          .pp = plan.pp,
          .vpp = plan.vpp,
          .num_microbatches = num_microbatches(job, plan),
          .group = job.profile.microbatch_group_size,
          .tells_gradients = job.profile.layout.blocks_make_gradients,
          .tells_parameters = shards_in_pipeline(job, plan),
          .reshards_forward = reshards_in_pipeline(job, plan)};
}

std::int64_t microbatch_group(const ScheduleShape& shape) {
  switch (shape.schedule) {
    case Schedule::kNone:
    case Schedule::k1F1B:
    case Schedule::kZbH1:
    case Schedule::kZbv: return 1;
    case Schedule::kGpipe: return shape.num_microbatches;
    case Schedule::kInterleaved1F1B: return shape.group > 0 ? shape.group : shape.pp;
    case Schedule::kInterleavedZeroBubble:
      return shape.group > 0 ? shape.group : microbatches_per_round(shape);
  }
  throw std::logic_error("microbatch_group: unknown schedule");
}

ScheduleShape shortest_equivalent(const ScheduleShape& shape) {
  ScheduleShape shorter = shape;
  shorter.group = microbatch_group(shape);
  const std::int64_t enough = 3 * shape.pp + 2 * shorter.group;
  if (shape.num_microbatches > enough) {
    shorter.num_microbatches -= (shape.num_microbatches - enough) / shorter.group * shorter.group;
  }
  return shorter;
}

std::int64_t rank_of_position(const ScheduleShape& shape, std::int64_t position) {
  const std::int64_t along = position % shape.pp;
  const bool goes_down = shape.schedule == Schedule::kZbv && position / shape.pp % 2 == 1;
  return goes_down ? shape.pp - 1 - along : along;
}

std::int64_t local_chunk_of_position(const ScheduleShape& shape, std::int64_t position) {
  return position / shape.pp;
}

std::int64_t position_of(const ScheduleShape& shape, std::int64_t pp_rank,
                         std::int64_t local_chunk) {
  const bool goes_down = shape.schedule == Schedule::kZbv && local_chunk % 2 == 1;
  return local_chunk * shape.pp + (goes_down ? shape.pp - 1 - pp_rank : pp_rank);
}

std::vector<ScheduleAction> schedule_actions(const ScheduleShape& shape, std::int64_t pp_rank) {
  std::vector<ScheduleAction> actions;
  actions.reserve(static_cast<std::size_t>(3 * shape.num_microbatches * shape.vpp));
  visit_actions(shape, pp_rank, Extent::kAll,
                [&](const ScheduleAction& action) { actions.push_back(action); });
  return actions;
}

std::vector<ScheduleAction> first_actions(const ScheduleShape& shape, std::int64_t pp_rank) {
  std::vector<ScheduleAction> actions;
  visit_actions(shortest_equivalent(shape), pp_rank, Extent::kUntilNothingNew,
                [&](const ScheduleAction& action) { actions.push_back(action); });
  return actions;
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
  if (shape.schedule == Schedule::kGpipe) {
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
