// Speed of every own kernel beside the copy bandwidth measured in the same run: as shares of a
// device-to-device copy of 4 GiB, and of one of the same number of bytes.
// usage: bench_kernels [memory] [gemm] [fp8] [attention] [experts] [grouped] [sustained]
//        (default: all but sustained, which lasts 25 s)
#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/lse_merge.h"
#include "kernels/pointwise/adamw.h"
#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/cross_entropy.h"
#include "kernels/pointwise/embedding.h"
#include "kernels/pointwise/random.h"
#include "kernels/pointwise/rms_norm.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/squared_norm.h"
#include "kernels/pointwise/sum_parts.h"
#include "kernels/pointwise/swiglu.h"
#include "tools/bench/experts.h"
#include "tools/bench/fp8.h"
#include "tools/bench/products.h"

namespace shardplan {
namespace {

constexpr int kWarmups = 5;
constexpr int kRepeats = 30;
constexpr std::int64_t kCopyBytes = std::int64_t{4} << 30;

}  // namespace

double median_s(const std::function<void(cudaStream_t)>& call, cudaStream_t stream) {
  std::vector<float> milliseconds;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < kWarmups + kRepeats; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    call(stream);
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float elapsed = 0;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin, end));
    if (i >= kWarmups) {
      milliseconds.push_back(elapsed);
    }
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  std::ranges::sort(milliseconds);
  return static_cast<double>(milliseconds[milliseconds.size() / 2]) / 1e3;
}

Bench::Bench(cudaStream_t stream) : stream_(stream), from_(kCopyBytes), to_(kCopyBytes) {
  constexpr std::int64_t kFloats = kCopyBytes / static_cast<std::int64_t>(sizeof(float));
  fill_normal(reinterpret_cast<float*>(from_.data()), 1, 1, 0, kFloats, stream);
  most_bytes_per_s_ = copy_rate(2.0 * kCopyBytes);
  std::printf("copy, 4 GiB, read + write: %.0f GB/s\n", most_bytes_per_s_ / 1e9);
}

double Bench::copy_rate(double bytes) {
  const auto half = static_cast<std::size_t>(std::min(bytes / 2, 1.0 * kCopyBytes));
  const double seconds = median_s(
      [&](cudaStream_t on) {
        CUDA_CHECK(cudaMemcpyAsync(to_.data(), from_.data(), half, cudaMemcpyDeviceToDevice, on));
      },
      stream_);
  return 2.0 * static_cast<double>(half) / seconds;
}

void Bench::row(const std::string& name, double bytes,
                const std::function<void(cudaStream_t)>& call) {
  const double rate = bytes / median_s(call, stream_);
  std::printf("%-44s %9.1f us %8.0f GB/s %6.1f %% %6.1f %%\n", name.c_str(), bytes / rate * 1e6,
              rate / 1e9, 100 * rate / most_bytes_per_s_, 100 * rate / copy_rate(bytes));
}

namespace {

std::string shape_text(const std::string& type, std::int64_t rows, std::int64_t width) {
  return " " + type + " " + std::to_string(rows) + "x" + std::to_string(width);
}

template <class T>
void bench_rms_norm(Bench& bench, const std::string& type, std::int64_t rows, std::int64_t width) {
  const std::int64_t size = rows * width;
  DeviceBuffer<T> x(random_values<T>(size, 1)), residual(random_values<T>(size, 2)),
      weight(random_values<T>(width, 3)), y(size), sum(size);
  DeviceBuffer<float> rstd(rows), partial(kRmsNormPartials * width), dweight(width);
  const std::string shape = shape_text(type, rows, width);
  const double tensor_bytes = static_cast<double>(size) * sizeof(T);
  bench.row("rms_norm_forward" + shape, 2 * tensor_bytes, [&](cudaStream_t on) {
    rms_norm_forward(y.data(), rstd.data(), x.data(), weight.data(), rows, width, 1e-5F, on);
  });
  bench.row("add_rms_norm_forward" + shape, 4 * tensor_bytes, [&](cudaStream_t on) {
    add_rms_norm_forward(y.data(), rstd.data(), sum.data(), x.data(), residual.data(),
                         weight.data(), rows, width, 1e-5F, on);
  });
  bench.row("rms_norm_backward" + shape, 4 * tensor_bytes, [&](cudaStream_t on) {
    rms_norm_backward(sum.data(), dweight.data(), partial.data(), y.data(), x.data(), rstd.data(),
                      weight.data(), residual.data(), rows, width, on);
  });
}

template <class T>
void bench_swiglu(Bench& bench, const std::string& type, std::int64_t rows, std::int64_t width) {
  const std::int64_t size = rows * width;
  DeviceBuffer<T> gate_up(random_values<T>(2 * size, 1)), dout(random_values<T>(size, 2)),
      out(size), dgate_up(2 * size);
  const std::string shape = shape_text(type, rows, width);
  const double tensor_bytes = static_cast<double>(size) * sizeof(T);
  bench.row("swiglu_forward" + shape, 3 * tensor_bytes,
            [&](cudaStream_t on) { swiglu_forward(out.data(), gate_up.data(), rows, width, on); });
  bench.row("swiglu_backward" + shape, 5 * tensor_bytes, [&](cudaStream_t on) {
    swiglu_backward<T>(dgate_up.data(), nullptr, dout.data(), gate_up.data(), rows, width, on);
  });
  bench.row("swiglu_backward, output again" + shape, 6 * tensor_bytes, [&](cudaStream_t on) {
    swiglu_backward(dgate_up.data(), out.data(), dout.data(), gate_up.data(), rows, width, on);
  });
}

template <class T, class M, class G>
void bench_adamw(Bench& bench, const std::string& types) {
  constexpr std::int64_t kSize = 100'000'000;
  DeviceBuffer<T> weight(kSize);
  DeviceBuffer<float> master(random_values<float>(kSize, 1)), factor(std::vector<float>{1});
  DeviceBuffer<M> m(random_values<M>(kSize, 2)), v(kSize);
  DeviceBuffer<G> gradient(random_values<G>(kSize, 3));
  CUDA_CHECK(cudaMemset(v.data(), 0, kSize * sizeof(M)));
  const double bytes = kSize * (2.0 * sizeof(float) + 4.0 * sizeof(M) + sizeof(G) + sizeof(T));
  bench.row("adamw " + types + " 1e8", bytes, [&](cudaStream_t on) {
    adamw(weight.data(), master.data(), m.data(), v.data(), gradient.data(), factor.data(), kSize,
          {.rate = 1e-3F}, on);
  });
}

void bench_flat(Bench& bench) {
  constexpr std::int64_t kSize = 200'000'000;
  DeviceBuffer<float> wide(random_values<float>(kSize, 1));
  DeviceBuffer<__nv_bfloat16> narrow(random_values<__nv_bfloat16>(kSize, 2)), other(kSize);
  DeviceBuffer<double> partial(kSquaredNormPartials);
  DeviceBuffer<float> total(std::vector<float>{0});
  bench.row("add fp32 += bf16 2e8", 10.0 * kSize,
            [&](cudaStream_t on) { add(wide.data(), wide.data(), narrow.data(), kSize, on); });
  bench.row("convert bf16 from fp32 2e8", 6.0 * kSize,
            [&](cudaStream_t on) { convert(other.data(), wide.data(), kSize, on); });
  bench.row("add bf16 2e8", 6.0 * kSize,
            [&](cudaStream_t on) { add(other.data(), other.data(), narrow.data(), kSize, on); });
  bench.row("squared norm fp32 2e8", 4.0 * kSize, [&](cudaStream_t on) {
    add_squared_norm(total.data(), partial.data(), wide.data(), kSize, 1, on);
  });
  bench.row("squared norm bf16 2e8", 2.0 * kSize, [&](cudaStream_t on) {
    add_squared_norm(total.data(), partial.data(), narrow.data(), kSize, 1, on);
  });
}

template <class T>
void bench_rope(Bench& bench, const std::string& type) {
  constexpr std::int64_t kRows = 16384, kHeads = 40, kHeadDim = 128, kRowWidth = 48 * kHeadDim;
  DeviceBuffer<T> qkv(random_values<T>(kRows * kRowWidth, 1));
  DeviceBuffer<float2> table(8192 * (kHeadDim / 2));
  rope_table(table.data(), 8192, kHeadDim, 5e5, bench.stream());
  bench.row("rope 40 of 48 heads" + shape_text(type, kRows, kRowWidth),
            2.0 * kRows * kHeads * kHeadDim * sizeof(T), [&](cudaStream_t on) {
              rope(qkv.data(), table.data(),
                   {.rows = kRows, .length = 8192, .first_start = 0, .second_start = 4096},
                   kRowWidth, kHeads, kHeadDim, RopeDirection::kForward, on);
            });
}

template <class T>
void bench_cross_entropy(Bench& bench, const std::string& type) {
  constexpr std::int64_t kRows = 8192, kWidth = 128256;
  DeviceBuffer<T> logits(random_values<T>(kRows * kWidth, 1));
  DeviceBuffer<std::int32_t> targets(std::vector<std::int32_t>(kRows, 4711));
  DeviceBuffer<RowStatistics> statistics(kRows), combined(kRows);
  DeviceBuffer<float> loss(std::vector<float>{0});
  const VocabularyShard shard = {.rows = kRows, .width = kWidth, .num_valid = kWidth};
  const std::string shape = shape_text(type, kRows, kWidth);
  const double tensor_bytes = static_cast<double>(kRows * kWidth) * sizeof(T);
  bench.row("cross_entropy_statistics" + shape, tensor_bytes, [&](cudaStream_t on) {
    cross_entropy_statistics(statistics.data(), logits.data(), targets.data(), shard, on);
  });
  cross_entropy_combine(combined.data(), loss.data(), statistics.data(), 1, kRows, 1,
                        bench.stream());
  bench.row("cross_entropy_gradient" + shape, 2 * tensor_bytes, [&](cudaStream_t on) {
    cross_entropy_gradient(logits.data(), combined.data(), targets.data(), shard, 1e-4F, on);
  });
}

template <class T>
void bench_embedding(Bench& bench, const std::string& type) {
  constexpr std::int64_t kRows = 16384, kWidth = 4096, kTokens = 128256;
  std::minstd_rand generator(5);
  std::vector<std::int32_t> tokens(kRows);
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(static_cast<std::int64_t>(generator()) % kTokens);
  }
  DeviceBuffer<std::int32_t> dev_tokens(tokens), scratch(embedding_backward_scratch(kRows));
  DeviceBuffer<T> table(random_values<T>(kTokens * kWidth, 1)), out(kRows * kWidth);
  DeviceBuffer<float> dtable(kTokens * kWidth);
  CUDA_CHECK(cudaMemset(dtable.data(), 0, kTokens * kWidth * sizeof(float)));
  std::ranges::sort(tokens);
  const double distinct =
      static_cast<double>(std::unique(tokens.begin(), tokens.end()) - tokens.begin());
  const std::string shape = shape_text(type, kRows, kWidth);
  bench.row("embedding_forward" + shape, 2.0 * kRows * kWidth * sizeof(T), [&](cudaStream_t on) {
    embedding_forward(out.data(), table.data(), dev_tokens.data(), kRows, kWidth, 0, kTokens, on);
  });
  bench.row("embedding_backward with sort" + shape,
            kWidth * (kRows * sizeof(T) + distinct * 2 * sizeof(float)), [&](cudaStream_t on) {
              embedding_backward(dtable.data(), scratch.data(), out.data(), dev_tokens.data(),
                                 kRows, kWidth, 0, kTokens, on);
            });
}

void bench_lse_merge(Bench& bench, std::int64_t heads) {
  constexpr std::int64_t kRows = 16384, kHeadDim = 128;
  const std::int64_t size = kRows * heads;
  DeviceBuffer<float> o(random_values<float>(size * kHeadDim, 1)),
      lse(random_values<float>(size, 2)), part_lse(random_values<float>(size, 3));
  DeviceBuffer<__nv_bfloat16> part(random_values<__nv_bfloat16>(size * kHeadDim, 4));
  bench.row("lse_merge bf16 into fp32 16384x" + std::to_string(heads) + "x128",
            static_cast<double>(size) * (kHeadDim * 10.0 + 12), [&](cudaStream_t on) {
              lse_merge(o.data(), lse.data(), part.data(), part_lse.data(), kRows, heads, kHeadDim,
                        on);
            });
}

// A reduce-scatter of [rows, 8192] among num_parts members, of what it pulled.
void bench_sum_parts(Bench& bench, std::int64_t rows, std::int64_t num_parts) {
  const std::int64_t size = rows / num_parts * 8192;
  DeviceBuffer<__nv_bfloat16> parts(random_values<__nv_bfloat16>(num_parts * size, 1)),
      own(random_values<__nv_bfloat16>(size, 2)), sum(size);
  bench.row(
      "sum_parts of " + std::to_string(num_parts) + shape_text("bf16", rows / num_parts, 8192),
      2.0 * static_cast<double>((num_parts + 1) * size), [&](cudaStream_t on) {
        sum_parts(sum.data(), parts.data(), own.data(), num_parts, num_parts / 2, {.width = size},
                  on);
      });
}

void bench_memory(Bench& bench) {
  bench_rms_norm<__nv_bfloat16>(bench, "bf16", 16384, 4096);
  bench_rms_norm<__nv_bfloat16>(bench, "bf16", 16384, 5120);
  bench_rms_norm<__nv_bfloat16>(bench, "bf16", 8192, 8192);
  bench_rms_norm<__nv_bfloat16>(bench, "bf16", 8192, 16384);
  bench_rms_norm<float>(bench, "fp32", 8192, 4096);
  bench_swiglu<__nv_bfloat16>(bench, "bf16", 8192, 14336);
  bench_swiglu<float>(bench, "fp32", 8192, 14336);
  bench_adamw<__nv_bfloat16, float, float>(bench, "weight bf16, rest fp32");
  bench_adamw<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(bench, "all but master bf16");
  bench_flat(bench);
  bench_rope<__nv_bfloat16>(bench, "bf16");
  bench_rope<float>(bench, "fp32");
  bench_cross_entropy<__nv_bfloat16>(bench, "bf16");
  bench_cross_entropy<float>(bench, "fp32");
  bench_embedding<__nv_bfloat16>(bench, "bf16");
  bench_lse_merge(bench, 32);
  bench_lse_merge(bench, 40);
  for (const std::int64_t num_parts : {2, 4, 8}) { bench_sum_parts(bench, 8192, num_parts); }
}

// All parts where none is named.
void run(const std::vector<std::string>& parts) {
  const auto wanted = [&](const char* part) {
    return parts.empty() || std::ranges::find(parts, part) != parts.end();
  };
  ScopedStream stream;
  Bench bench(stream);
  if (wanted("memory")) {
    bench_memory(bench);
  }
  if (wanted("gemm")) {
    bench_gemm(stream);
  }
  if (wanted("fp8")) {
    bench_fp8(bench);
  }
  if (!parts.empty() && wanted("sustained")) {
    bench_sustained_gemm(stream);
  }
  if (wanted("attention")) {
    bench_attentions(stream);
  }
  if (wanted("experts")) {
    bench_experts(bench);
  }
  if (wanted("grouped")) {
    bench_grouped(stream);
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was measured is not lost where it is stopped
  try {
    shardplan::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return 3;
  }
  return 0;
}
