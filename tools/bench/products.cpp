// Products and attention: TFLOP/s.
#include "tools/bench/products.h"

#include <cstdio>

#include "kernels/attention/trial.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/random.h"
#include "tools/bench/kernels.h"
#include "tools/measure/sustained_gemm.h"

namespace shardplan {

// Rates of arithmetic, not of bytes: the forward, weight-gradient and input-gradient products of a
// feed-forward layer.
void bench_gemm(cudaStream_t stream) {
  constexpr std::int64_t kRows = 8192, kIn = 4096, kOut = 28672, kWorkspaceBytes = 32 << 20;
  using Bf16 = __nv_bfloat16;
  DeviceBuffer<Bf16> x(random_values<Bf16>(kRows * kIn, 1)),
      y(random_values<Bf16>(kRows * kOut, 2)), weight(random_values<Bf16>(kIn * kOut, 3));
  DeviceBuffer<float> dweight(random_values<float>(kIn * kOut, 4));
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  const auto row = [&](const char* name, const GemmShape& shape, void* out, const void* a,
                       const void* b) {
    const Gemm gemm(library, shape, kWorkspaceBytes);
    const double seconds =
        median_s([&](cudaStream_t on) { gemm.run(out, a, b, workspace.data(), on); }, stream);
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
      y.data(), x.data(), weight.data());
  row("gemm dx = dy w^T",
      {.rows = kRows,
       .columns = kIn,
       .inner = kOut,
       .b_layout = GemmLayout::kTransposed,
       .a_stride = kOut,
       .b_stride = kOut,
       .out_stride = kIn},
      x.data(), y.data(), weight.data());
  row("gemm dw += x^T dy, fp32",
      {.rows = kIn,
       .columns = kOut,
       .inner = kRows,
       .a_layout = GemmLayout::kTransposed,
       .a_stride = kIn,
       .b_stride = kOut,
       .out_stride = kOut,
       .out_type = GemmType::kFloat,
       .sum = GradientSum::kAccumulate},
      dweight.data(), x.data(), y.data());
}

void bench_sustained_gemm(cudaStream_t stream) {
  constexpr double kSeconds = 25;
  std::printf("sustained gemm 16384x28672x4096, TFLOP/s by second:");
  const SustainedRate rate =
      sustained_gemm(read_gemm_choices(gemm_choices_path()), kSeconds, stream,
                     [](double flops_per_s) { std::printf(" %.0f", flops_per_s / 1e12); });
  std::printf("\nsustained gemm, all %.1f s: %.1f TFLOP/s; second half: %.1f TFLOP/s\n",
              rate.seconds, rate.flops_per_s / 1e12, rate.settled_flops_per_s / 1e12);
}

namespace {

// Queries on the keys up to theirs, all of them or those of a window.
struct AttentionRows {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t window = 0;

  std::string name() const {
    return std::to_string(queries) + (keys == queries ? "" : " on " + std::to_string(keys)) +
           (window == 0 ? "" : ", window " + std::to_string(window));
  }
};

// Llama-3-8B's heads; FLOPs of what the mask leaves, backward 2.5 times forward.
void bench_attention(const AttentionLibrary& library, const AttentionRows& rows,
                     AttentionOrder order, cudaStream_t stream) {
  AttentionTrial trial(library,
                       {.query_length = rows.queries,
                        .key_length = rows.keys,
                        .heads = 32,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .query_position = rows.keys - rows.queries,
                        .window = rows.window},
                       order, stream);
  const auto row = [&](const char* name, const std::string& own_because, std::int64_t bytes,
                       double work, const std::function<void(cudaStream_t)>& f) {
    const double seconds = median_s(f, stream);
    std::printf("%s causal bf16 %s x 32/8 heads x 128, %s: %.1f us, %.0f TFLOP/s, workspace %lld\n",
                name, rows.name().c_str(), own_because.empty() ? "cuDNN" : "own kernel",
                seconds * 1e6, work / seconds / 1e12, static_cast<long long>(bytes));
  };
  row("attention_forward", trial.forward().own_because(), trial.forward().workspace_bytes(),
      trial.forward_flops(), [&](cudaStream_t on) { trial.run_forward(on); });
  row(order == AttentionOrder::kAny ? "attention_backward" : "attention_backward, repeatable,",
      trial.backward().own_because(), trial.backward().workspace_bytes(), trial.backward_flops(),
      [&](cudaStream_t on) { trial.run_backward(on); });
}

}  // namespace

void bench_attentions(cudaStream_t stream) {
  const AttentionLibrary fastest;
  const AttentionLibrary own(AttentionKernels::kOwn);
  std::printf("attention: %s\n", fastest.description().c_str());
  const AttentionRows square{.queries = 8192, .keys = 8192};
  for (const AttentionLibrary* library : {&fastest, &own}) {
    for (const AttentionRows& rows :
         {square, AttentionRows{.queries = 32768, .keys = 32768},
          // A chunk of gathered context parallelism, and windows.
          AttentionRows{.queries = 8192, .keys = 32768},
          AttentionRows{.queries = 8192, .keys = 32768, .window = 4096},
          AttentionRows{.queries = 8192, .keys = 12288, .window = 4096},
          AttentionRows{.queries = 32768, .keys = 32768, .window = 4096}}) {
      bench_attention(*library, rows, AttentionOrder::kAny, stream);
    }
  }
  bench_attention(fastest, square, AttentionOrder::kRepeatable, stream);
}

}  // namespace shardplan
