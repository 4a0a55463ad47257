// Memory of the current device: what the driver says of it, what a run may not use, what belongs to
// other processes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace shardplan {

struct DeviceMemory {
  std::int64_t free = 0;
  std::int64_t total = 0;
  std::int64_t used() const { return total - free; }
};

// Throws CudaError.
DeviceMemory device_memory();

// Free bytes even where a sticky error lets no call succeed.
std::optional<std::int64_t> free_bytes_if_known();

// Memory of the device that the run may not use.
class Reservation {
 public:
  // Takes what the device has beyond the limit. Throws CudaError.
  explicit Reservation(std::optional<std::int64_t> limit_bytes);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  std::int64_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Memory of other processes, mapped into this one until the run is over.
class MappedArenas {
 public:
  MappedArenas() = default;
  ~MappedArenas();
  MappedArenas(const MappedArenas&) = delete;
  MappedArenas& operator=(const MappedArenas&) = delete;
  void* open(const cudaIpcMemHandle_t& handle);  // throws CudaError
  void close();

 private:
  std::vector<void*> opened_;
};

}  // namespace shardplan
