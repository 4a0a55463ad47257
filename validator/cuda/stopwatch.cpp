#include "validator/cuda/stopwatch.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/number.h"

namespace shardplan {
namespace {

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

Stopwatch::Stopwatch(cudaStream_t stream) : stream_(stream) {
  CUDA_CHECK(cudaEventCreate(&begin_));
  CUDA_CHECK(cudaEventCreate(&end_));
}

Stopwatch::~Stopwatch() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

double Stopwatch::batch_s(const TimedCall& call, std::int64_t calls) {
  CUDA_CHECK(cudaEventRecord(begin_, stream_));
  for (std::int64_t i = 0; i < calls; ++i) { call(stream_); }
  CUDA_CHECK(cudaEventRecord(end_, stream_));
  CUDA_CHECK(cudaEventSynchronize(end_));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return static_cast<double>(milliseconds) / 1e3 / number(calls);
}

double Stopwatch::median_s(const TimedCall& call, double seconds) {
  const Batch batch = batch_of(call);
  const std::int64_t batches =
      std::max<std::int64_t>(3, static_cast<std::int64_t>(seconds / batch.seconds));
  std::vector<double> times;
  for (std::int64_t i = 0; i < batches; ++i) { times.push_back(batch_s(call, batch.calls)); }
  return median(std::move(times));
}

double Stopwatch::median_behind_s(const TimedCall& call, const TimedCall& load, double seconds) {
  const Batch batch = batch_of(call);
  const double load_s = std::max(batch_s(load, 2), 1e-7);
  const std::int64_t loads = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(std::ceil(kLoadOverCall * batch.seconds / load_s)));
  const double round_s = batch.seconds + number(loads) * load_s;
  const std::int64_t rounds =
      std::max<std::int64_t>(5, static_cast<std::int64_t>(seconds / round_s));
  std::vector<double> times;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::int64_t i = 0; i < loads; ++i) { load(stream_); }
    times.push_back(batch_s(call, batch.calls));
  }
  return median(std::move(times));
}

double Stopwatch::clock_over_products(const TimedCall& products, const TimedCall& load,
                                      double seconds) {
  const double product_s = median_behind_s(products, products, seconds);
  median_s(load, seconds);
  const double load_s = batch_s(load, 4);
  // As many of either that the load lasts at least three times as long.
  const std::int64_t calls =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(load_s / kLoadOverCall / product_s));
  const std::int64_t loads =
      static_cast<std::int64_t>(std::ceil(kLoadOverCall * product_s * number(calls) / load_s));
  std::vector<double> times;
  for (double spent_s = 0; spent_s < seconds;
       spent_s += number(calls) * times.back() + number(loads) * load_s) {
    for (std::int64_t i = 0; i < loads; ++i) { load(stream_); }
    times.push_back(batch_s(products, calls));
  }
  const double behind_s = median(std::move(times));
  const double share =
      number(calls) * behind_s / (number(calls) * behind_s + number(loads) * load_s);
  return (1 - share) / (behind_s / product_s - share);
}

Stopwatch::Batch Stopwatch::batch_of(const TimedCall& call) {
  constexpr double kBatchSeconds = 5e-4;
  batch_s(call, 1);
  const double once_s = std::max(batch_s(call, 2), 1e-7);
  const std::int64_t calls =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(kBatchSeconds / once_s)));
  return {.calls = calls, .seconds = once_s * number(calls)};
}

void fill_random(DeviceBuffer<__nv_bfloat16>& buffer, std::int64_t size, unsigned seed) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 24;
  std::minstd_rand generator(seed);
  std::vector<__nv_bfloat16> block(static_cast<std::size_t>(std::min(size, kBlock)));
  for (__nv_bfloat16& value : block) {
    value = __nv_bfloat16(static_cast<float>(generator()) / 1.1e9F - 1.0F);
  }
  const std::int64_t length = static_cast<std::int64_t>(block.size());
  for (std::int64_t at = 0; at < size; at += length) {
    const auto bytes =
        static_cast<std::size_t>(std::min(length, size - at)) * sizeof(__nv_bfloat16);
    CUDA_CHECK(cudaMemcpy(buffer.data() + at, block.data(), bytes, cudaMemcpyHostToDevice));
  }
}

}  // namespace shardplan
