// Where the time of one training step goes on one GPU, operation by operation.
#pragma once

#include <vector>

#include "tools/bench/step_gaps.h"
#include "validator/cuda/rank.h"
#include "validator/program/program.h"

namespace shardplan {

class TrainingProfile {
 public:
  // The program, which runs on `device`, must outlive this.
  TrainingProfile(const Program& program, int device);
  ~TrainingProfile();
  TrainingProfile(const TrainingProfile&) = delete;
  TrainingProfile& operator=(const TrainingProfile&) = delete;

  // Records an event on either side of every operation; for one step, whose end the caller awaits.
  LaunchHooks hooks();
  // By operation, once the step has ended.
  std::vector<OperationTime> times() const;
  // One row for every kind of operation: how often, milliseconds, share of the step, milliseconds
  // of the fastest and the slowest, TFLOP/s of products and attention (causal pairs once), TB/s of
  // all else; the longest first. Then what lies between the operations of the compute stream, what
  // it waited for there, and how much communication ran beside it.
  void print() const;

 private:
  const Program& program_;
  std::vector<cudaEvent_t> begins_;  // by operation
  std::vector<cudaEvent_t> ends_;
};

}  // namespace shardplan
