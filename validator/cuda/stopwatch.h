// What the microbenchmarks of `calibrate --time` share: times of calls on one stream, and data.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "kernels/pointwise/device_buffer.h"

namespace shardplan {

using TimedCall = std::function<void(cudaStream_t)>;

// Pairs of events around batches of calls.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Seconds of one of `calls` calls.
  double batch_s(const TimedCall& call, std::int64_t calls);

  // Median over batches of at least half a millisecond that together last `seconds`; at least 3.
  double median_s(const TimedCall& call, double seconds);

  // The same of at least five batches, each behind loads that take about three times as long: the
  // clock that a GPU at its limit of power keeps under the load is the one that counts.
  double median_behind_s(const TimedCall& call, const TimedCall& load, double seconds);

  // The clock that the GPU keeps under `load`, over that under `products`, whose time goes as the
  // clock: from products behind loads and behind products. The clock's cycle is the mean over both.
  double clock_over_products(const TimedCall& products, const TimedCall& load, double seconds);

 private:
  struct Batch {
    std::int64_t calls = 1;
    double seconds = 0;
  };
  Batch batch_of(const TimedCall& call);

  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// `size` values between -1 and 1: a random block, again and again.
void fill_random(DeviceBuffer<__nv_bfloat16>& buffer, std::int64_t size, unsigned seed);

}  // namespace shardplan
