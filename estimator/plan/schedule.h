// Pipeline schedules: the ordered actions of one rank. What is in flight at each: in_flight.h.
#pragma once

#include <cstddef>
#include <cstdint>
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
// V: up the ranks and down again, so that rank 0 holds both ends.
std::int64_t rank_of_position(const ScheduleShape& shape, std::int64_t position);
std::int64_t local_chunk_of_position(const ScheduleShape& shape, std::int64_t position);
std::int64_t position_of(const ScheduleShape& shape, std::int64_t pp_rank,
                         std::int64_t local_chunk);

// All actions of one rank in issue order; each (chunk, microbatch) has one forward and one backward
// (or one backward-input and one backward-weight).
std::vector<ScheduleAction> schedule_actions(const ScheduleShape& shape, std::int64_t pp_rank);

// The first of them, until nothing new can be in flight: the peak of a step lies among them.
// Bounded work for any number of microbatches, but for GPipe, which has all of them in flight.
std::vector<ScheduleAction> first_actions(const ScheduleShape& shape, std::int64_t pp_rank);

}  // namespace shardplan
