// The frame of the kernel benchmarks: medians of timed calls, and rows of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/device_buffer.h"

namespace shardplan {

// Values that do not repeat and do not compress: rates on zeros flatter.
template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed) {
  std::minstd_rand generator(seed);
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& value : values) { value = T(static_cast<float>(generator()) / 1e9F - 1.0F); }
  return values;
}

// Median seconds of one call, each between its own pair of events.
double median_s(const std::function<void(cudaStream_t)>& call, cudaStream_t stream);

// Prints one row for each call; bytes are what the operation must read and write.
struct Bench {
  double copy_bytes_per_s;
  cudaStream_t stream;
  void row(const std::string& name, double bytes, const std::function<void(cudaStream_t)>& call);
};

// Rates of arithmetic: products and attention by library and by own kernels.
void bench_gemm(cudaStream_t stream);
void bench_fp8(Bench& bench);
void bench_sustained_gemm(cudaStream_t stream);
void bench_attentions(cudaStream_t stream);

// What a mixture of experts adds: router, rows, exchange on one GPU, grouped products.
void bench_experts(Bench& bench);
void bench_grouped(cudaStream_t stream);

}  // namespace shardplan
