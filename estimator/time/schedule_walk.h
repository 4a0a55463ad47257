// Walks a pipeline schedule: every rank runs its actions in order, each as soon as its input is
// there. Exact for any chunk times; linear in the actions. The closed forms are tested against it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimator/plan/schedule.h"

namespace shardplan {

// Seconds of one microbatch in one chunk, sends included.
struct ChunkTime {
  double forward_s = 0;
  double backward_input_s = 0;
  double backward_weight_s = 0;

  double total_s() const { return forward_s + backward_input_s + backward_weight_s; }
  friend bool operator==(const ChunkTime&, const ChunkTime&) = default;
};

struct TimedAction {
  ScheduleAction action;
  double start_s = 0;
  double end_s = 0;
};

struct ScheduleWalk {
  std::vector<std::vector<TimedAction>> ranks;  // by pipeline rank, in issue order
  double total_s = 0;                           // end of the last action of any rank
};

// chunks: pp * vpp entries in model order. Throws logic_error if the ranks wait for one another.
ScheduleWalk walk_schedule(const ScheduleShape& shape, std::span<const ChunkTime> chunks);

}  // namespace shardplan
