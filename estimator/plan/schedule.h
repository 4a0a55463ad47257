// Pipeline schedules: the ordered actions of one rank, and what is in flight at each of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

enum class ActionKind {
  kForward,
  kBackward,        // input and weight gradients together
  kBackwardInput,   // zero-bubble schedules: input gradient only
  kBackwardWeight,  // the delayed weight gradient
};

inline constexpr std::size_t kNumActionKinds = 4;

struct ScheduleAction {
  ActionKind kind = ActionKind::kForward;
  std::int64_t chunk = 0;  // local chunk, 0..vpp-1
  std::int64_t microbatch = 0;
  friend bool operator==(const ScheduleAction&, const ScheduleAction&) = default;
};

struct ScheduleShape {
  Schedule schedule = Schedule::k1F1B;
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::int64_t num_microbatches = 1;
  std::int64_t group = 0;        // interleaved: microbatches per virtual stage; 0: pp
  bool tells_gradients = false;  // states say whether a chunk's gradients exist already
  // States say which chunks' parameters are gathered and which chunks' gradients are reduced, as
  // FSDP2 does under torch.distributed.pipelining.
  bool tells_parameters = false;
  bool reshards_forward = false;  // they say it block by block: parameters go with the forward
  friend bool operator==(const ScheduleShape&, const ScheduleShape&) = default;
};

// Backward is split into input and weight gradients, the latter delayed.
bool delays_weight_gradients(Schedule schedule);

ScheduleShape schedule_shape(const Job& job, const Plan& plan);
// Whether FSDP2 shards parameters and gradients of a pipeline's chunks.
bool shards_in_pipeline(const Job& job, const Plan& plan);
// And drops each block's parameters after its forward.
bool reshards_in_pipeline(const Job& job, const Plan& plan);

// Microbatches of one chunk in a row: shape.group, or what the schedule takes by default.
std::int64_t microbatch_group(const ScheduleShape& shape);

// A schedule repeats itself after its warm-up with a period of one group. The same schedule with
// fewer microbatches, by whole periods, such that warm-up, a steady part and cool-down remain.
ScheduleShape shortest_equivalent(const ScheduleShape& shape);

// Placement of the pp * vpp chunks, counted in model order. Looping: rank = position % pp.
// V (kZbv): up the ranks and down again, so that rank 0 holds both ends.
std::int64_t rank_of_position(const ScheduleShape& shape, std::int64_t position);
std::int64_t local_chunk_of_position(const ScheduleShape& shape, std::int64_t position);
std::int64_t position_of(const ScheduleShape& shape, std::int64_t pp_rank,
                         std::int64_t local_chunk);

// All actions of one rank in issue order; each (chunk, microbatch) has one forward and one backward
// (or one backward-input and one backward-weight).
std::vector<ScheduleAction> schedule_actions(const ScheduleShape& shape, std::int64_t pp_rank);

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

// The first of them, until nothing new can be in flight: the peak of a step lies among them.
// Bounded work for any number of microbatches, but for GPipe, which has all of them in flight.
std::vector<ScheduleAction> first_actions(const ScheduleShape& shape, std::int64_t pp_rank);

// Every state of a shape that tells_parameters, and behind a chunk's last action the one in which
// its gradients are reduced.
std::vector<InFlightState> parameter_states(const ScheduleShape& shape, std::int64_t pp_rank);

// The states of the schedule that no other state of the same (action, chunk) dominates in every
// count: the peak of a step lies at one of them. Bounded work for any number of microbatches.
std::vector<InFlightState> peak_in_flight_states(const ScheduleShape& shape, std::int64_t pp_rank);

}  // namespace shardplan
