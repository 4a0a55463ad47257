// What GPU tests share: a buffer on the device, values of a fixed seed, and the error against a
// double-precision reference. Plain C++: launchers are called from g++ code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda_check.h"

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
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
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

// One stream for a test; nothing uses the default stream.
class TestStream {
 public:
  TestStream() { CUDA_CHECK(cudaStreamCreate(&stream_)); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

inline double to_double(double value) {
  return value;
}
inline double to_double(float value) {
  return value;
}
inline double to_double(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T>
T from_double(double value);
template <>
inline float from_double<float>(double value) {
  return static_cast<float>(value);
}
template <>
inline __nv_bfloat16 from_double<__nv_bfloat16>(double value) {
  return __float2bfloat16_rn(static_cast<float>(value));
}

// Normally distributed values, as T rounds them.
template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed, double mean = 0, double spread = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, spread);
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) { values.push_back(from_double<T>(normal(generator))); }
  return values;
}

// ||got - want|| / ||want||
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double delta = to_double(got[i]) - want[i];
    difference += delta * delta;
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

// What rounding to T alone may cost: half a unit in the last place, and float sums on the way.
template <class T>
inline constexpr double kRoundingError = 1e-6;
template <>
inline constexpr double kRoundingError<__nv_bfloat16> = 3e-3;

}  // namespace shardplan
