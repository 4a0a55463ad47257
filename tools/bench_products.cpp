// Products and attention: TFLOP/s.
#include <algorithm>
#include <cstdio>

#include "kernels/attention_call.h"
#include "kernels/convert.h"  // the type bf16
#include "kernels/gemm.h"
#include "tools/bench_kernels.h"

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
                       const void* b, float beta) {
    const Gemm gemm(library, shape, kWorkspaceBytes);
    const double seconds =
        median_s([&](cudaStream_t on) { gemm.run(out, a, b, beta, workspace.data(), on); }, stream);
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

namespace {

// Llama-3-8B's heads; FLOPs of the causal triangle once, backward 2.5 times forward.
void bench_attention(const AttentionLibrary& library, std::int64_t length, AttentionOrder order,
                     cudaStream_t stream) {
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
  const AttentionForward forward(library, AttentionTypes::kBf16, shape);
  const AttentionBackward backward(library, AttentionTypes::kBf16, shape,
                                   {.dq_stride = kStride, .dkv_stride = kStride}, order);
  DeviceBuffer<__nv_bfloat16> qkv(random_values<__nv_bfloat16>(length * kStride, 1)),
      dqkv(length * kStride), o(length * shape.o_stride),
      dout(random_values<__nv_bfloat16>(length * shape.o_stride, 2));
  DeviceBuffer<float> lse(length * kHeads);
  DeviceBuffer<char> workspace(
      std::max<std::int64_t>({1, forward.workspace_bytes(), backward.workspace_bytes()}));
  __nv_bfloat16* k = qkv.data() + kHeads * kHeadDim;
  __nv_bfloat16* v = k + kKvHeads * kHeadDim;
  __nv_bfloat16* dk = dqkv.data() + kHeads * kHeadDim;
  const double flops = 2.0 * static_cast<double>(length * length * kHeads * kHeadDim);
  const auto row = [&](const char* name, const std::string& own_because, std::int64_t bytes,
                       double work, const std::function<void(cudaStream_t)>& f) {
    const double seconds = median_s(f, stream);
    std::printf(
        "%s causal bf16 %lld x 32/8 heads x 128, %s: %.1f us, %.0f TFLOP/s, workspace %lld\n", name,
        static_cast<long long>(length), own_because.empty() ? "cuDNN" : "own kernel", seconds * 1e6,
        work / seconds / 1e12, static_cast<long long>(bytes));
  };
  row("attention_forward", forward.own_because(), forward.workspace_bytes(), flops,
      [&](cudaStream_t on) {
        forward.run(o.data(), lse.data(), qkv.data(), k, v, workspace.data(), on);
      });
  row(order == AttentionOrder::kAny ? "attention_backward" : "attention_backward, repeatable,",
      backward.own_because(), backward.workspace_bytes(), 2.5 * flops, [&](cudaStream_t on) {
        backward.run(dqkv.data(), dk, dk + kKvHeads * kHeadDim, dout.data(), qkv.data(), k, v,
                     o.data(), lse.data(), workspace.data(), on);
      });
}

}  // namespace

void bench_attentions(cudaStream_t stream) {
  const AttentionLibrary fastest;
  const AttentionLibrary own(AttentionKernels::kOwn);
  std::printf("attention: %s\n", fastest.description().c_str());
  for (const AttentionLibrary* library : {&fastest, &own}) {
    bench_attention(*library, 8192, AttentionOrder::kAny, stream);
    bench_attention(*library, 32768, AttentionOrder::kAny, stream);
  }
  bench_attention(fastest, 8192, AttentionOrder::kRepeatable, stream);
}

}  // namespace shardplan
