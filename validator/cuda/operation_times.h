// Times the operations of one step on a GPU: an event on either side of each, on its own stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "validator/cuda/rank.h"
#include "validator/supervise/operation_times.h"

namespace shardplan {

class OperationEvents {
 public:
  // Of the first kMostOperationTimes operations. Events are made on the current device.
  explicit OperationEvents(std::int64_t num_operations);
  ~OperationEvents();
  OperationEvents(const OperationEvents&) = delete;
  OperationEvents& operator=(const OperationEvents&) = delete;

  // The zero of the times, on an idle device: read from the clock as soon as the device has passed
  // it, so that the precision is what recording and waiting take.
  void mark_origin();
  // For LaunchHooks: around every operation of one step, whose end the caller awaits.
  void begin(std::int64_t operation, cudaStream_t stream);
  void end(std::int64_t operation, cudaStream_t stream);
  // After that end; without `met_s`.
  OperationTimes times() const;

 private:
  void record(const std::vector<cudaEvent_t>& events, std::int64_t operation, cudaStream_t stream);

  std::vector<cudaEvent_t> begins_;
  std::vector<cudaEvent_t> ends_;
  cudaEvent_t origin_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of the origin
  double origin_s_ = 0;
  double precision_s_ = 0;
};

}  // namespace shardplan
