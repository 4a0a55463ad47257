#include "validator/cuda/calibration.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>

#include "estimator/plan/number.h"
#include "kernels/attention/trial.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/device_buffer.h"
#include "validator/cuda/beside_bench.h"
#include "validator/cuda/collective_bench.h"
#include "validator/cuda/copies_bench.h"
#include "validator/cuda/fp8_bench.h"
#include "validator/cuda/grouped_bench.h"
#include "validator/cuda/machine.h"
#include "validator/cuda/stopwatch.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;
constexpr std::int64_t kClockLength = 8192;
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

// kAccumulated: a weight gradient in fp32, added to what is there.
enum class Pass { kForward, kInputGradient, kWeightGradient, kAccumulated };

// Layouts as a linear layer with its weight [out, in] has them.
GemmShape gemm_shape(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmShape shape = {
      .rows = m, .columns = n, .inner = k, .a_stride = k, .b_stride = n, .out_stride = n};
  if (pass == Pass::kForward) {
    shape.b_layout = GemmLayout::kTransposed;
    shape.b_stride = k;
  }
  if (pass == Pass::kWeightGradient || pass == Pass::kAccumulated) {
    shape.a_layout = GemmLayout::kTransposed;
    shape.a_stride = m;
  }
  if (pass == Pass::kAccumulated) {
    shape.out_type = GemmType::kFloat;
    shape.sum = GradientSum::kAccumulate;
  }
  return shape;
}

// What a step does most of its time: large products.
class Load {
 public:
  explicit Load(std::int64_t size)
      : a_(size * size),
        b_(size * size),
        out_(size * size),
        workspace_(kWorkspaceBytes),
        gemm_(library_, gemm_shape(Pass::kForward, size, size, size), kWorkspaceBytes) {
    fill_random(a_, size * size, 1);
    fill_random(b_, size * size, 2);
  }
  void operator()(cudaStream_t on) {
    gemm_.run(out_.data(), a_.data(), b_.data(), workspace_.data(), on);
  }

 private:
  GemmLibrary library_;
  DeviceBuffer<Bf16> a_;
  DeviceBuffer<Bf16> b_;
  DeviceBuffer<Bf16> out_;
  DeviceBuffer<char> workspace_;
  Gemm gemm_;
};

class ProductBench {
 public:
  ProductBench(std::int64_t largest, cudaStream_t stream)
      : stream_(stream),
        a_(largest * largest),
        b_(largest * largest),
        out_(largest * largest),
        workspace_(kWorkspaceBytes) {
    fill_random(a_, largest * largest, 1);
    fill_random(b_, largest * largest, 2);
    const auto bytes = static_cast<std::size_t>(largest * largest) * sizeof(float);
    CUDA_CHECK(cudaMemset(out_.data(), 0, bytes));
  }

  // FLOP/s.
  double rate(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k, const TimedCall& load,
              double seconds) {
    const Gemm gemm(library_, gemm_shape(pass, m, n, k), kWorkspaceBytes);
    const double once_s = Stopwatch(stream_).median_behind_s(
        [&](cudaStream_t on) {
          gemm.run(out_.data(), a_.data(), b_.data(), workspace_.data(), on);
        },
        load, seconds);
    return 2 * number(m) * number(n) * number(k) / once_s;
  }

 private:
  cudaStream_t stream_;
  GemmLibrary library_;
  DeviceBuffer<Bf16> a_;
  DeviceBuffer<Bf16> b_;
  DeviceBuffer<float> out_;  // bf16 in its first half
  DeviceBuffer<char> workspace_;
};

GemmGrid measure_gemm(const TimeCalibration& calibration, const TimedCall& load,
                      cudaStream_t stream) {
  GemmGrid grid = grid_over(calibration.gemm_sizes);
  ProductBench bench(calibration.gemm_sizes.back(), stream);
  Stopwatch(stream).median_s(load, calibration.warm_up_s);
  for (const auto& [pass, rates] : {std::pair{Pass::kForward, &grid.forward},
                                    std::pair{Pass::kInputGradient, &grid.input_gradient},
                                    std::pair{Pass::kWeightGradient, &grid.weight_gradient},
                                    std::pair{Pass::kAccumulated, &grid.accumulated}}) {
    *rates = rates_over(calibration.gemm_sizes,
                        [&, pass = pass](std::int64_t m, std::int64_t n, std::int64_t k) {
                          return bench.rate(pass, m, n, k, load, calibration.seconds_per_point);
                        });
  }
  return grid;
}

// The hidden width is 4096 whatever the head dimension.
constexpr std::int64_t kAttentionWidth = 4096;

// Four query heads share a key head.
AttentionShape attention_shape(std::int64_t length, std::int64_t tokens, std::int64_t heads,
                               std::int64_t head_dim) {
  return {.batch = std::max<std::int64_t>(1, tokens / length),
          .query_length = length,
          .key_length = length,
          .heads = heads,
          .kv_heads = heads / 4,
          .head_dim = head_dim};
}

struct Rates {
  double forward = 0;
  double backward = 0;
};
Rates measure_attention(const AttentionLibrary& library, const AttentionShape& shape,
                        const TimeCalibration& calibration, const TimedCall& load,
                        cudaStream_t stream) {
  AttentionTrial trial(library, shape, AttentionOrder::kAny, stream);
  Stopwatch watch(stream);
  const double seconds = 16 * calibration.seconds_per_point;
  const double forward_s =
      watch.median_behind_s([&](cudaStream_t on) { trial.run_forward(on); }, load, seconds);
  const double backward_s =
      watch.median_behind_s([&](cudaStream_t on) { trial.run_backward(on); }, load, seconds);
  return {.forward = trial.forward_flops() / forward_s,
          .backward = trial.backward_flops() / backward_s};
}

std::vector<AttentionCurve> measure_attentions(const TimeCalibration& calibration,
                                               const TimedCall& load, cudaStream_t stream) {
  const AttentionLibrary library;
  std::vector<AttentionCurve> curves;
  for (const std::int64_t head_dim : calibration.head_dims) {
    AttentionCurve curve;
    curve.head_dim = head_dim;
    curve.tokens = calibration.attention_tokens;
    curve.heads = kAttentionWidth / head_dim;
    curve.few_heads = calibration.few_heads;
    for (const std::int64_t length : calibration.lengths) {
      const auto rates = [&](std::int64_t tokens, std::int64_t heads) {
        return measure_attention(library, attention_shape(length, tokens, heads, head_dim),
                                 calibration, load, stream);
      };
      const Rates many = rates(curve.tokens, curve.heads);
      const Rates few = rates(length, curve.few_heads);
      curve.forward.push_back({.size = number(length), .value = many.forward});
      curve.backward.push_back({.size = number(length), .value = many.backward});
      curve.few.forward.push_back({.size = number(length), .value = few.forward});
      curve.few.backward.push_back({.size = number(length), .value = few.backward});
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

class Copy {
 public:
  Copy() : from_(kBytes / 2), to_(kBytes / 2) { fill_random(from_, kBytes / 2, 5); }
  void operator()(cudaStream_t on) {
    CUDA_CHECK(cudaMemcpyAsync(to_.data(), from_.data(), kBytes, cudaMemcpyDeviceToDevice, on));
  }

  static constexpr std::int64_t kBytes = std::int64_t{1} << 31;

 private:
  DeviceBuffer<Bf16> from_;
  DeviceBuffer<Bf16> to_;
};

// What the GPU's clock is under other kernels than products, where products set its limit.
void measure_clocks(const TimeCalibration& calibration, const TimedCall& products,
                    const TimedCall& copy, MeasuredTimes& times, cudaStream_t stream) {
  Stopwatch watch(stream);
  times.copy_clock_over_products =
      watch.clock_over_products(products, copy, calibration.clock_seconds);
  const AttentionLibrary library;
  for (AttentionCurve& curve : times.attention) {
    AttentionTrial trial(library,
                         attention_shape(kClockLength, curve.tokens, curve.heads, curve.head_dim),
                         AttentionOrder::kAny, stream);
    const TimedCall attention = [&](cudaStream_t on) {
      trial.run_forward(on);
      trial.run_backward(on);
    };
    curve.clock_over_products =
        watch.clock_over_products(products, attention, calibration.clock_seconds);
  }
}

// Host time of launching a kernel too short to fill the queue's other end.
double measure_launch(cudaStream_t stream) {
  constexpr std::int64_t kLaunches = 500;
  constexpr int kRounds = 9;
  DeviceBuffer<float> wide(64);
  DeviceBuffer<Bf16> narrow(64);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < kLaunches; ++i) {
      convert(narrow.data(), wide.data(), 64, stream);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    times.push_back(elapsed.count() / number(kLaunches));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

GemmGrid grid_over(const std::vector<std::int64_t>& sizes) {
  GemmGrid grid;
  grid.m.assign(sizes.begin(), sizes.end());
  grid.n = grid.m;
  grid.k = grid.m;
  return grid;
}

std::vector<double> rates_over(
    const std::vector<std::int64_t>& sizes,
    const std::function<double(std::int64_t, std::int64_t, std::int64_t)>& rate) {
  std::vector<double> rates;
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) { rates.push_back(rate(m, n, k)); }
    }
  }
  return rates;
}

MeasuredTimes measure_times(const TimeCalibration& calibration,
                            const std::function<void(const std::string&)>& report) {
  MeasuredTimes times;
  CUDA_CHECK(cudaSetDevice(static_cast<int>(calibration.device)));
  {
    const ScopedStream stream;
    times.launch_s = measure_launch(stream);
    Copy copies;
    const TimedCall copy = [&](cudaStream_t on) { copies(on); };
    times.copy_bytes_per_s = 2 * number(Copy::kBytes) / Stopwatch(stream).median_s(copy, 0.2);
    report("copy and launch");
    Load products(std::min<std::int64_t>(8192, calibration.gemm_sizes.back()));
    const TimedCall load = [&](cudaStream_t on) { products(on); };
    times.gemm = measure_gemm(calibration, load, stream);
    report("products");
    times.gemm_fp8 = measure_gemm_fp8(calibration, stream);
    if (!times.gemm_fp8.m.empty()) {
      report("products in fp8");
    }
    times.attention = measure_attentions(calibration, load, stream);
    report("attention");
    measure_clocks(calibration, load, copy, times, stream);
    report("clocks");
    times.grouped = measure_grouped(calibration, stream);
    report("experts");
  }
  CUDA_CHECK(cudaSetDevice(0));
  if (calibration.num_gpus > 1) {
    times.collectives = measure_collectives(calibration);
    times.beside = measure_beside();
    report("collectives");
    times.copies = {.collectives = measure_copies(calibration), .beside = measure_beside_copies()};
    report("copies between GPUs");
  }
  return times;
}

std::string calibrated_machine() {
  return std::to_string(num_gpus_here()) + "x " + machine_description(0) + ", attention by " +
         AttentionLibrary().description() + ", NVLS off";
}

std::int64_t num_gpus_here() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return found == cudaSuccess ? count : 0;
}

}  // namespace shardplan
