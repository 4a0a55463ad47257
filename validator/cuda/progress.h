// Marks that the device writes into the progress page while it runs: which communication a stream
// stands at. The host has launched the whole step long before, so that it cannot know.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "validator/program/program.h"
#include "validator/supervise/progress.h"

namespace shardplan {

class DeviceMarks {
 public:
  // Maps the page for the current device; where that is impossible, marks nothing.
  explicit DeviceMarks(ProgressPage& page);
  ~DeviceMarks();
  DeviceMarks(const DeviceMarks&) = delete;
  DeviceMarks& operator=(const DeviceMarks&) = delete;

  // Enqueued: the stream stands at this operation. Only communication is marked: a stream that
  // hangs waits for another rank.
  void begin(const Program& program, std::int64_t operation, cudaStream_t stream) const;
  void end(const Program& program, std::int64_t operation, cudaStream_t stream) const;

  // A beat for the supervisor whenever a mark has changed since the last call.
  void beat_if_moved(Progress& progress);

 private:
  void write(const Operation& op, std::int64_t value, cudaStream_t stream) const;

  ProgressPage& page_;
  ProgressPage* device_page_ = nullptr;  // the same memory as the device addresses it
  void* write_value_ = nullptr;          // cuStreamWriteValue64
  std::array<std::int64_t, kNumStreams> last_{};
};

}  // namespace shardplan
