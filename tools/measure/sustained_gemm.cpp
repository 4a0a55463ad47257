#include "tools/measure/sustained_gemm.h"

#include <chrono>

#include "kernels/pointwise/convert.h"  // the type bf16
#include "kernels/pointwise/device_buffer.h"
#include "kernels/pointwise/random.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {

SustainedRate sustained_gemm(const GemmChoices& choices, double seconds, cudaStream_t stream,
                             const std::function<void(double flops_per_s)>& report) {
  constexpr std::int64_t kRows = 16384, kIn = 4096, kOut = 28672, kWorkspaceBytes = 32 << 20;
  constexpr int kProducts = 200;  // between two looks at the clock: about a second
  using Bf16 = __nv_bfloat16;
  DeviceBuffer<Bf16> x(kRows * kIn), y(kRows * kOut), weight(kIn * kOut);
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  fill_normal(x.data(), 1, 1, 0, kRows * kIn, stream);
  fill_normal(weight.data(), 0.02F, 2, 0, kIn * kOut, stream);
  const GemmLibrary library(choices);
  const Gemm gemm(library,
                  {.rows = kRows,
                   .columns = kOut,
                   .inner = kIn,
                   .b_layout = GemmLayout::kTransposed,
                   .a_stride = kIn,
                   .b_stride = kIn,
                   .out_stride = kOut},
                  kWorkspaceBytes);
  const double flops = 2.0 * kProducts * kRows * kIn * kOut;
  CUDA_CHECK(cudaStreamSynchronize(stream));
  SustainedRate rate;
  double settled_s = 0;
  int rounds = 0;
  int settled_rounds = 0;
  while (rate.seconds < seconds) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kProducts; ++i) {
      gemm.run(y.data(), x.data(), weight.data(), workspace.data(), stream);
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const double round_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (report) {
      report(flops / round_s);
    }
    rate.seconds += round_s;
    ++rounds;
    if (rate.seconds > seconds / 2) {
      settled_s += round_s;
      ++settled_rounds;
    }
  }
  rate.flops_per_s = flops * rounds / rate.seconds;
  rate.settled_flops_per_s = flops * settled_rounds / settled_s;
  return rate;
}

std::vector<SustainedRate> sustained_on_gpus(const GemmChoices& choices, double seconds,
                                             std::int64_t num_gpus) {
  std::vector<SustainedRate> rates(static_cast<std::size_t>(num_gpus));
  on_threads(rates.size(), [&](std::size_t gpu) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(gpu)));
    const ScopedStream stream;
    rates[gpu] = sustained_gemm(choices, seconds, stream);
  });
  return rates;
}

}  // namespace shardplan
