// Owners of device resources for tests, benchmarks and tools: memory and a stream. Plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {

template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::int64_t size) : size_(size) {
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
  }
  explicit DeviceBuffer(const std::vector<T>& values)
      : DeviceBuffer(static_cast<std::int64_t>(values.size())) {
    CUDA_CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
  // As many values as the buffer has.
  void assign(const std::vector<T>& values) {
    CUDA_CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  // Waits for the device.
  std::vector<T> host() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

// A stream of its own; nothing uses the default stream.
class ScopedStream {
 public:
  ScopedStream() { CUDA_CHECK(cudaStreamCreate(&stream_)); }
  ~ScopedStream() { cudaStreamDestroy(stream_); }
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace shardplan
