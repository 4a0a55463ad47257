#include "validator/cuda_calibration.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "kernels/attention_trial.h"
#include "kernels/convert.h"
#include "kernels/device_buffer.h"
#include "kernels/gemm.h"
#include "validator/cuda_machine.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;
using Call = std::function<void(cudaStream_t)>;
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

double number(std::int64_t count) {
  return static_cast<double>(count);
}

// Pairs of events around batches of calls.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Seconds of one of `calls` calls.
  double batch_s(const Call& call, std::int64_t calls) {
    CUDA_CHECK(cudaEventRecord(begin_, stream_));
    for (std::int64_t i = 0; i < calls; ++i) { call(stream_); }
    CUDA_CHECK(cudaEventRecord(end_, stream_));
    CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) / 1e3 / number(calls);
  }

  // Median over batches of at least half a millisecond that together last `seconds`; at least 3.
  double median_s(const Call& call, double seconds) {
    constexpr double kBatchSeconds = 5e-4;
    batch_s(call, 1);
    const double once_s = std::max(batch_s(call, 2), 1e-7);
    const std::int64_t calls =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(kBatchSeconds / once_s)));
    const std::int64_t batches =
        std::max<std::int64_t>(3, static_cast<std::int64_t>(seconds / (once_s * number(calls))));
    std::vector<double> times;
    for (std::int64_t i = 0; i < batches; ++i) { times.push_back(batch_s(call, calls)); }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// `size` values between -1 and 1: a random block, again and again.
void fill_random(DeviceBuffer<Bf16>& buffer, std::int64_t size, unsigned seed) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 24;
  std::minstd_rand generator(seed);
  std::vector<Bf16> block(static_cast<std::size_t>(std::min(size, kBlock)));
  for (Bf16& value : block) { value = Bf16(static_cast<float>(generator()) / 1.1e9F - 1.0F); }
  const std::int64_t length = static_cast<std::int64_t>(block.size());
  for (std::int64_t at = 0; at < size; at += length) {
    const auto bytes = static_cast<std::size_t>(std::min(length, size - at)) * sizeof(Bf16);
    CUDA_CHECK(cudaMemcpy(buffer.data() + at, block.data(), bytes, cudaMemcpyHostToDevice));
  }
}

enum class Pass { kForward, kInputGradient, kWeightGradient };

// Layouts as a linear layer with its weight [out, in] has them.
GemmShape gemm_shape(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmShape shape = {
      .rows = m, .columns = n, .inner = k, .a_stride = k, .b_stride = n, .out_stride = n};
  if (pass == Pass::kForward) {
    shape.b_layout = GemmLayout::kTransposed;
    shape.b_stride = k;
  }
  if (pass == Pass::kWeightGradient) {
    shape.a_layout = GemmLayout::kTransposed;
    shape.a_stride = m;
  }
  return shape;
}

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
  }

  // FLOP/s.
  double rate(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k, double seconds) {
    const Gemm gemm(library_, gemm_shape(pass, m, n, k), kWorkspaceBytes);
    const double once_s = Stopwatch(stream_).median_s(
        [&](cudaStream_t on) {
          gemm.run(out_.data(), a_.data(), b_.data(), workspace_.data(), on);
        },
        seconds);
    return 2 * number(m) * number(n) * number(k) / once_s;
  }

 private:
  cudaStream_t stream_;
  GemmLibrary library_;
  DeviceBuffer<Bf16> a_;
  DeviceBuffer<Bf16> b_;
  DeviceBuffer<Bf16> out_;
  DeviceBuffer<char> workspace_;
};

GemmGrid measure_gemm(const TimeCalibration& calibration, cudaStream_t stream) {
  GemmGrid grid;
  for (const std::int64_t size : calibration.gemm_sizes) { grid.m.push_back(number(size)); }
  grid.n = grid.m;
  grid.k = grid.m;
  ProductBench bench(calibration.gemm_sizes.back(), stream);
  const std::int64_t warm = std::min<std::int64_t>(8192, calibration.gemm_sizes.back());
  bench.rate(Pass::kForward, warm, warm, warm, calibration.warm_up_s);
  for (const auto& [pass, rates] : {std::pair{Pass::kForward, &grid.forward},
                                    std::pair{Pass::kInputGradient, &grid.input_gradient},
                                    std::pair{Pass::kWeightGradient, &grid.weight_gradient}}) {
    for (const std::int64_t m : calibration.gemm_sizes) {
      for (const std::int64_t n : calibration.gemm_sizes) {
        for (const std::int64_t k : calibration.gemm_sizes) {
          rates->push_back(bench.rate(pass, m, n, k, calibration.seconds_per_point));
        }
      }
    }
  }
  return grid;
}

// Four query heads share a key head; the hidden width is 4096 whatever the head dimension.
struct AttentionRates {
  double forward = 0;
  double backward = 0;
};
AttentionRates measure_attention(const AttentionLibrary& library, std::int64_t length,
                                 std::int64_t head_dim, const TimeCalibration& calibration,
                                 cudaStream_t stream) {
  const std::int64_t heads = 4096 / head_dim;
  const std::int64_t kv_heads = heads / 4;
  const std::int64_t batch = std::max<std::int64_t>(1, calibration.attention_tokens / length);
  AttentionTrial trial(library,
                       {.batch = batch,
                        .query_length = length,
                        .key_length = length,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim},
                       AttentionOrder::kAny, stream);
  Stopwatch watch(stream);
  const double forward_s = watch.median_s([&](cudaStream_t on) { trial.run_forward(on); },
                                          4 * calibration.seconds_per_point);
  const double backward_s = watch.median_s([&](cudaStream_t on) { trial.run_backward(on); },
                                           4 * calibration.seconds_per_point);
  return {.forward = trial.forward_flops() / forward_s,
          .backward = trial.backward_flops() / backward_s};
}

std::vector<AttentionCurve> measure_attentions(const TimeCalibration& calibration,
                                               cudaStream_t stream) {
  const AttentionLibrary library;
  std::vector<AttentionCurve> curves;
  for (const std::int64_t head_dim : calibration.head_dims) {
    AttentionCurve curve = {.head_dim = head_dim, .forward = {}, .backward = {}};
    for (const std::int64_t length : calibration.lengths) {
      const AttentionRates rates =
          measure_attention(library, length, head_dim, calibration, stream);
      curve.forward.push_back({.size = number(length), .value = rates.forward});
      curve.backward.push_back({.size = number(length), .value = rates.backward});
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

double measure_copy(cudaStream_t stream) {
  constexpr std::int64_t kSize = std::int64_t{1} << 31;
  DeviceBuffer<Bf16> from(kSize / 2);
  DeviceBuffer<Bf16> to(kSize / 2);
  fill_random(from, kSize / 2, 5);
  const double seconds = Stopwatch(stream).median_s(
      [&](cudaStream_t on) {
        CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), kSize, cudaMemcpyDeviceToDevice, on));
      },
      0.2);
  return 2 * number(kSize) / seconds;
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

MeasuredTimes measure_times(const TimeCalibration& calibration,
                            const std::function<void(const std::string&)>& report) {
  MeasuredTimes times;
  {
    const ScopedStream stream;
    times.launch_s = measure_launch(stream);
    times.copy_bytes_per_s = measure_copy(stream);
    report("copy and launch");
    times.gemm = measure_gemm(calibration, stream);
    report("products");
    times.attention = measure_attentions(calibration, stream);
    report("attention");
  }
  if (calibration.num_gpus > 1) {
    times.collectives = measure_collectives(calibration);
    report("collectives");
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
