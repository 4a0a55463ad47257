// Speed of every own kernel beside the copy bandwidth measured in the same run.
// A share of 100 % means: as fast as a device-to-device copy of the same number of bytes.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/cross_entropy.h"
#include "kernels/device_buffer.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/lse_merge.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/squared_norm.h"
#include "kernels/swiglu.h"

namespace shardplan {
namespace {

// Values that do not repeat and do not compress: rates on zeros flatter.
template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed) {
  std::minstd_rand generator(seed);
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& value : values) { value = T(static_cast<float>(generator()) / 1e9F - 1.0F); }
  return values;
}

constexpr int kWarmups = 5;
constexpr int kRepeats = 30;

// Median seconds of one call, each between its own pair of events.
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

void print_row(const std::string& name, double bytes, double seconds, double copy_bytes_per_s) {
  std::printf("%-44s %9.1f us %8.0f GB/s %6.1f %%\n", name.c_str(), seconds * 1e6,
              bytes / seconds / 1e9, 100 * bytes / seconds / copy_bytes_per_s);
}

double bench_copy(cudaStream_t stream) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  DeviceBuffer<char> from(kBytes), to(kBytes);
  const double seconds = median_s(
      [&](cudaStream_t on) {
        CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, on));
      },
      stream);
  return 2.0 * kBytes / seconds;
}

// Prints one row for each call; bytes are what the operation must read and write.
struct Bench {
  double copy_bytes_per_s;
  cudaStream_t stream;
  void row(const std::string& name, double bytes, const std::function<void(cudaStream_t)>& call) {
    print_row(name, bytes, median_s(call, stream), copy_bytes_per_s);
  }
};

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
  rope_table(table.data(), 8192, kHeadDim, 5e5, bench.stream);
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
  cross_entropy_combine(combined.data(), loss.data(), statistics.data(), 1, kRows, 1, bench.stream);
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

// Rates of arithmetic, not of bytes: the forward, weight-gradient and input-gradient products of a
// feed-forward layer.
void bench_gemm(Bench& bench) {
  constexpr std::int64_t kRows = 8192, kIn = 4096, kOut = 28672, kWorkspaceBytes = 32 << 20;
  using Bf16 = __nv_bfloat16;
  DeviceBuffer<Bf16> x(random_values<Bf16>(kRows * kIn, 1)),
      y(random_values<Bf16>(kRows * kOut, 2)), weight(random_values<Bf16>(kIn * kOut, 3));
  DeviceBuffer<float> dweight(random_values<float>(kIn * kOut, 4));
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  const auto row = [&](const char* name, const GemmShape& shape, void* out, const void* a,
                       const void* b, float beta) {
    const Gemm gemm(library, shape, kWorkspaceBytes);
    const double seconds = median_s(
        [&](cudaStream_t on) { gemm.run(out, a, b, beta, workspace.data(), on); }, bench.stream);
    std::printf("%-44s %9.1f us %8.0f TFLOP/s\n", name, seconds * 1e6,
                2.0 * kRows * kIn * kOut / seconds / 1e12);
  };
  row("gemm y = x w, bf16 8192x4096x28672",
      {.rows = kRows,
       .columns = kOut,
       .inner = kIn,
       .a_stride = kIn,
       .b_stride = kOut,
       .out_stride = kOut},
      y.data(), x.data(), weight.data(), 0);
  row("gemm dx = dy w^T",
      {.rows = kRows,
       .columns = kIn,
       .inner = kOut,
       .b_layout = GemmLayout::kTransposed,
       .a_stride = kOut,
       .b_stride = kOut,
       .out_stride = kIn},
      x.data(), y.data(), weight.data(), 0);
  row("gemm dw += x^T dy, fp32",
      {.rows = kIn,
       .columns = kOut,
       .inner = kRows,
       .a_layout = GemmLayout::kTransposed,
       .a_stride = kIn,
       .b_stride = kOut,
       .out_stride = kOut,
       .out_type = GemmType::kFloat},
      dweight.data(), x.data(), y.data(), 1);
}

void bench_lse_merge(Bench& bench) {
  constexpr std::int64_t kRows = 16384, kHeads = 32, kHeadDim = 128, kLses = kRows * kHeads;
  DeviceBuffer<float> o(random_values<float>(kLses * kHeadDim, 1)),
      lse(random_values<float>(kLses, 2)), part_lse(random_values<float>(kLses, 3));
  DeviceBuffer<__nv_bfloat16> part(random_values<__nv_bfloat16>(kLses * kHeadDim, 4));
  bench.row("lse_merge bf16 into fp32 16384x32x128", kLses * (kHeadDim * 10.0 + 12),
            [&](cudaStream_t on) {
              lse_merge(o.data(), lse.data(), part.data(), part_lse.data(), kRows, kHeads, kHeadDim,
                        on);
            });
}

// Llama-3-8B's heads; FLOPs of the causal triangle once, backward 2.5 times forward.
void bench_attention(std::int64_t length, cudaStream_t stream) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
  constexpr std::int64_t kStride = (kHeads + 2 * kKvHeads) * kHeadDim;
  const AttentionShape shape = {.query_length = length,
                                .key_length = length,
                                .heads = kHeads,
                                .kv_heads = kKvHeads,
                                .head_dim = kHeadDim,
                                .q_stride = kStride,
                                .kv_stride = kStride,
                                .o_stride = kHeads * kHeadDim};
  DeviceBuffer<__nv_bfloat16> qkv(random_values<__nv_bfloat16>(length * kStride, 1)),
      dqkv(length * kStride), o(length * shape.o_stride),
      dout(random_values<__nv_bfloat16>(length * shape.o_stride, 2));
  DeviceBuffer<float> lse(length * kHeads), delta(length * kHeads);
  __nv_bfloat16* k = qkv.data() + kHeads * kHeadDim;
  __nv_bfloat16* v = k + kKvHeads * kHeadDim;
  __nv_bfloat16* dk = dqkv.data() + kHeads * kHeadDim;
  const double flops = 2.0 * static_cast<double>(length * length * kHeads * kHeadDim);
  const auto row = [&](const char* name, double work, const std::function<void(cudaStream_t)>& f) {
    const double seconds = median_s(f, stream);
    std::printf("%s causal bf16 %lld x 32/8 heads x 128: %.1f us, %.0f TFLOP/s\n", name,
                static_cast<long long>(length), seconds * 1e6, work / seconds / 1e12);
  };
  row("attention_forward", flops, [&](cudaStream_t on) {
    attention_forward(o.data(), lse.data(), qkv.data(), k, v, shape, on);
  });
  row("attention_backward", 2.5 * flops, [&](cudaStream_t on) {
    attention_backward(dqkv.data(), dk, dk + kKvHeads * kHeadDim, delta.data(), dout.data(),
                       qkv.data(), k, v, o.data(), lse.data(), shape,
                       {.dq_stride = kStride, .dkv_stride = kStride}, on);
  });
}

void run() {
  ScopedStream stream;
  Bench bench = {.copy_bytes_per_s = bench_copy(stream), .stream = stream};
  std::printf("copy, 4 GiB, read + write: %.0f GB/s\n", bench.copy_bytes_per_s / 1e9);
  bench_rms_norm<__nv_bfloat16>(bench, "bf16", 16384, 4096);
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
  bench_lse_merge(bench);
  bench_gemm(bench);
  bench_attention(8192, stream);
  bench_attention(32768, stream);
}

}  // namespace
}  // namespace shardplan

int main() {
  try {
    shardplan::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return 3;
  }
  return 0;
}
