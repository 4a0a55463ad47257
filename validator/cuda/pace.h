// Keeps the host near the GPU. A queue of the driver that is full stops the host with the locks of
// its GPU taken, and, where it copies, with those of the other GPU: in one process another rank's
// thread then cannot launch what this GPU waits for. Threads that run few operations ahead never
// fill a queue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace shardplan {

class CudaPace {
 public:
  // On the current device, whose streams these are. members: of the largest group that copies.
  CudaPace(const std::vector<cudaStream_t>& streams, std::int64_t members);
  ~CudaPace();
  CudaPace(const CudaPace&) = delete;
  CudaPace& operator=(const CudaPace&) = delete;

  // Before the launch of every operation: waits for those of some time ago.
  void before_launch();

 private:
  const std::vector<cudaStream_t>& streams_;
  std::int64_t interval_;                        // operations between marks
  std::vector<std::vector<cudaEvent_t>> marks_;  // by mark in turn and stream
  std::int64_t launched_ = 0;
};

}  // namespace shardplan
