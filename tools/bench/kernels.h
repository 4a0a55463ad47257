// The frame of the kernel benchmarks: medians of timed calls, and rows of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/pointwise/device_buffer.h"
#include "kernels/pointwise/random.h"

namespace shardplan {

// Normal values: rates on zeros flatter.
template <class T>
DeviceBuffer<T> random_values(std::int64_t size, unsigned seed) {
  const ScopedStream stream;
  DeviceBuffer<T> values(size);
  fill_normal(values.data(), 1, seed, 0, size, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return values;
}

// Median seconds of one call, each between its own pair of events.
double median_s(const std::function<void(cudaStream_t)>& call, cudaStream_t stream);

// Prints one row for each call; bytes are what the operation must read and write. Beside its rate
// stand its share of the rate at which much is copied, and of the rate of a copy of as many bytes:
// what a launch, a start and an end leave of the former.
class Bench {
 public:
  explicit Bench(cudaStream_t stream);
  cudaStream_t stream() const { return stream_; }
  void row(const std::string& name, double bytes, const std::function<void(cudaStream_t)>& call);

 private:
  // Bytes/s of a copy that reads and writes `bytes` together.
  double copy_rate(double bytes);

  cudaStream_t stream_;
  DeviceBuffer<char> from_, to_;
  double most_bytes_per_s_ = 0;
};

}  // namespace shardplan
