#include "validator/cuda/memory.h"

#include "kernels/pointwise/cuda_check.h"
#include "validator/program/program.h"

namespace shardplan {

DeviceMemory device_memory() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {.free = static_cast<std::int64_t>(free_bytes),
          .total = static_cast<std::int64_t>(total_bytes)};
}

std::optional<std::int64_t> free_bytes_if_known() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(free_bytes);
}

Reservation::Reservation(std::optional<std::int64_t> limit_bytes) {
  if (!limit_bytes) {
    return;
  }
  const std::int64_t before = device_memory().used();
  const std::int64_t rest = device_memory().total - *limit_bytes;
  if (rest < kArenaMultiple) {
    return;
  }
  CUDA_CHECK(
      cudaMalloc(&memory_, static_cast<std::size_t>(rest / kArenaMultiple * kArenaMultiple)));
  bytes_ = device_memory().used() - before;
}

Reservation::~Reservation() {
  cudaFree(memory_);
}

MappedArenas::~MappedArenas() {
  close();
}

void* MappedArenas::open(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  return opened_.emplace_back(memory);
}

void MappedArenas::close() {
  for (void* memory : opened_) { cudaIpcCloseMemHandle(memory); }
  opened_.clear();
}

}  // namespace shardplan
