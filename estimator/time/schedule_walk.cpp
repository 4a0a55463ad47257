#include "estimator/time/schedule_walk.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace shardplan {
namespace {

constexpr double kNotYet = -1;

class Walker {
 public:
  Walker(const ScheduleShape& shape, std::span<const ChunkTime> chunks)
      : shape_(shape),
        chunks_(chunks),
        positions_(shape.pp * shape.vpp),
        forward_end_(static_cast<std::size_t>(positions_ * shape.num_microbatches), kNotYet),
        backward_end_(forward_end_) {
    if (static_cast<std::int64_t>(chunks.size()) != positions_) {
      throw std::logic_error("walk_schedule: one time per chunk is needed");
    }
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      actions_.push_back(schedule_actions(shape, rank));
    }
    walk_.ranks.resize(actions_.size());
  }

  ScheduleWalk run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < actions_.size(); ++rank) {
        while (step(rank)) { moved = true; }
      }
    }
    for (std::size_t rank = 0; rank < actions_.size(); ++rank) {
      if (walk_.ranks[rank].size() != actions_[rank].size()) {
        throw std::logic_error("walk_schedule: the ranks wait for one another");
      }
      if (!walk_.ranks[rank].empty()) {
        walk_.total_s = std::max(walk_.total_s, walk_.ranks[rank].back().end_s);
      }
    }
    return std::move(walk_);
  }

 private:
  double& end_of(std::vector<double>& ends, std::int64_t position, std::int64_t microbatch) {
    return ends[static_cast<std::size_t>(position * shape_.num_microbatches + microbatch)];
  }

  // When the input of an action is there; kNotYet if it has not been computed.
  double ready(const ScheduleAction& action, std::int64_t position) {
    const std::int64_t microbatch = action.microbatch;
    switch (action.kind) {
      case ActionKind::kForward:
        return position == 0 ? 0 : end_of(forward_end_, position - 1, microbatch);
      case ActionKind::kBackwardWeight: return end_of(backward_end_, position, microbatch);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        const double forward = end_of(forward_end_, position, microbatch);
        if (forward == kNotYet || position == positions_ - 1) {
          return forward;
        }
        return end_of(backward_end_, position + 1, microbatch);
      }
    }
    throw std::logic_error("walk_schedule: unknown action");
  }

  static double duration(ActionKind kind, const ChunkTime& time) {
    switch (kind) {
      case ActionKind::kForward: return time.forward_s;
      case ActionKind::kBackward: return time.backward_input_s + time.backward_weight_s;
      case ActionKind::kBackwardInput: return time.backward_input_s;
      case ActionKind::kBackwardWeight: return time.backward_weight_s;
    }
    throw std::logic_error("walk_schedule: unknown action");
  }

  // Runs the next action of a rank if its input is there.
  bool step(std::size_t rank) {
    std::vector<TimedAction>& done = walk_.ranks[rank];
    if (done.size() == actions_[rank].size()) {
      return false;
    }
    const ScheduleAction& action = actions_[rank][done.size()];
    const std::int64_t position =
        position_of(shape_, static_cast<std::int64_t>(rank), action.chunk);
    const double input = ready(action, position);
    if (input == kNotYet) {
      return false;
    }
    const double start = std::max(input, done.empty() ? 0 : done.back().end_s);
    const double end = start + duration(action.kind, chunks_[static_cast<std::size_t>(position)]);
    done.push_back({.action = action, .start_s = start, .end_s = end});
    if (action.kind == ActionKind::kForward) {
      end_of(forward_end_, position, action.microbatch) = end;
    } else if (action.kind != ActionKind::kBackwardWeight) {
      end_of(backward_end_, position, action.microbatch) = end;
    }
    return true;
  }

  ScheduleShape shape_;
  std::span<const ChunkTime> chunks_;
  std::int64_t positions_;
  std::vector<double> forward_end_;
  std::vector<double> backward_end_;
  std::vector<std::vector<ScheduleAction>> actions_;
  ScheduleWalk walk_;
};

}  // namespace

ScheduleWalk walk_schedule(const ScheduleShape& shape, std::span<const ChunkTime> chunks) {
  return Walker(shape, chunks).run();
}

}  // namespace shardplan
