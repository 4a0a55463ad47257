// Kernels of mixtures of experts: shares of the copy rate, and TFLOP/s of grouped products.
#include "tools/bench/experts.h"

#include <algorithm>
#include <cstdio>

#include "kernels/experts/exchange.h"
#include "kernels/experts/grouped_gemm.h"
#include "kernels/experts/grouped_weight_gradient.h"
#include "kernels/experts/router.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/swiglu.h"
#include "kernels/gemm/gemm.h"
#include "tools/bench/kernels.h"

namespace shardplan {
namespace {

// The experts of Qwen3-30B-A3B on one of 4 ranks: 128 experts, 8 choices of a row, 32 experts here;
// hidden 2048, width 768. All rows come from this rank alone, as if it were the group.
struct ExpertBench {
  static constexpr std::int64_t kRows = 4096, kChoices = 8, kExperts = 32, kHidden = 2048,
                                kWidth = 768, kReceived = kRows * kChoices;
  using Bf16 = __nv_bfloat16;

  RouterShape router{
      .rows = kRows, .experts = kExperts, .num_choices = kChoices, .sequence_rows = kRows};
  DeviceBuffer<float> logits{random_values<float>(kRows * kExperts, 1)},
      probabilities{kRows * kExperts}, weights{kReceived}, counts{kExperts},
      received_weights{kReceived}, required{1}, loss{std::vector<float>{0}},
      dlogits{kRows * kExperts}, dweights{kReceived};
  DeviceBuffer<double> partial{kRouterPartials};
  DeviceBuffer<std::int32_t> choices{kReceived}, places{kReceived}, offsets{kExperts + 1};
  DeviceBuffer<Bf16> x{random_values<Bf16>(kRows * kHidden, 2)}, received{kReceived * kHidden},
      out{kRows * kHidden};

  ExpertExchange exchange{.rows = kRows,
                          .num_choices = kChoices,
                          .width = kHidden,
                          .run_experts = kExperts,
                          .capacity = kReceived};

  void route(cudaStream_t on) {
    router_forward(probabilities.data(), choices.data(), weights.data(), counts.data(),
                   logits.data(), router, on);
  }
  void place(cudaStream_t on) {
    expert_rows(
        places.data(), offsets.data(), required.data(), choices.data(), counts.data(),
        {.choices = kReceived, .experts = kExperts, .run_experts = kExperts, .capacity = kReceived},
        RequiredRows::kOverwrite, on);
  }
  void dispatch(cudaStream_t on) {
    expert_dispatch<Bf16>({.at = {received.data()}}, {.at = {received_weights.data()}}, x.data(),
                          choices.data(), places.data(), weights.data(), exchange, on);
  }
  void combine(cudaStream_t on) {
    expert_combine<Bf16>(out.data(), nullptr, {.at = {received.data()}}, {}, choices.data(),
                         places.data(), exchange, CombineSum::kOverwrite, on);
  }
};

}  // namespace

void bench_experts(Bench& bench) {
  ExpertBench e;
  using Bf16 = ExpertBench::Bf16;
  constexpr std::int64_t kRows = ExpertBench::kRows, kReceived = ExpertBench::kReceived,
                         kExperts = ExpertBench::kExperts, kWidth = ExpertBench::kWidth,
                         kHidden = ExpertBench::kHidden;
  const double decisions = 4.0 * kRows * kExperts;
  bench.row("router_forward 4096x32, 8 choices", 2 * decisions + 8.0 * kReceived,
            [&](cudaStream_t on) { e.route(on); });
  bench.row("expert_rows 32768 choices, 32 experts", 8.0 * kReceived,
            [&](cudaStream_t on) { e.place(on); });
  bench.row("expert_dispatch bf16 4096x2048 to 32768", 2.0 * (kRows + kReceived) * kHidden,
            [&](cudaStream_t on) { e.dispatch(on); });
  bench.row("expert_combine bf16 32768x2048 to 4096", 2.0 * (kRows + kReceived) * kHidden,
            [&](cudaStream_t on) { e.combine(on); });
  bench.row(
      "router_backward 4096x32, 8 choices", 2 * decisions + 8.0 * kReceived, [&](cudaStream_t on) {
        router_backward(e.dlogits.data(), e.loss.data(), e.partial.data(), e.probabilities.data(),
                        e.choices.data(), e.weights.data(), e.counts.data(), 1e-3, e.router, on);
      });
  DeviceBuffer<Bf16> gate_up(random_values<Bf16>(kReceived * 2 * kWidth, 3)),
      activation(random_values<Bf16>(kReceived * kWidth, 4)), dgate_up(kReceived * 2 * kWidth);
  const std::int32_t* num_rows = e.offsets.data() + kExperts;
  bench.row("expert_swiglu_forward bf16 32768x768", 6.0 * kReceived * kWidth, [&](cudaStream_t on) {
    expert_swiglu_forward(activation.data(), gate_up.data(), e.received_weights.data(), num_rows,
                          kReceived, kWidth, on);
  });
  bench.row(
      "expert_swiglu_backward bf16 32768x768", 10.0 * kReceived * kWidth, [&](cudaStream_t on) {
        expert_swiglu_backward<Bf16>(dgate_up.data(), e.dweights.data(), nullptr, activation.data(),
                                     gate_up.data(), e.received_weights.data(), num_rows, kReceived,
                                     kWidth, on);
      });
}

namespace {

constexpr std::int64_t kWorkspaceBytes = 32 << 20;

// One shape of experts' products, beside cuBLASLt's of all rows with one weight.
struct GroupedBench {
  using Bf16 = __nv_bfloat16;
  using Call = std::function<void(cudaStream_t)>;

  std::int64_t experts, rows, columns, inner;  // columns: of a row of y
  cudaStream_t stream;
  DeviceBuffer<std::int32_t> offsets{shares()};
  DeviceBuffer<Bf16> x{random_values<Bf16>(rows * inner, 1)},
      weight{random_values<Bf16>(experts * inner * columns, 2)},
      y{random_values<Bf16>(rows * columns, 3)};
  DeviceBuffer<float> dweight{
      std::vector<float>(static_cast<std::size_t>(experts * inner * columns))};
  DeviceBuffer<char> workspace{kWorkspaceBytes};
  GemmLibrary library{};

  // Expert by expert, from half to one and a half of the mean.
  std::vector<std::int32_t> shares() const {
    std::vector<std::int32_t> all = {0};
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t share = rows * (2 * e + experts + 1) / (2 * experts * experts);
      all.push_back(static_cast<std::int32_t>(
          e + 1 == experts ? rows : std::min<std::int64_t>(rows, all.back() + share)));
    }
    return all;
  }

  void row(const char* name, const GemmShape& one, void* out, const void* a, const void* b,
           const Call& grouped) {
    const Gemm gemm(library, one, kWorkspaceBytes);
    const double one_s =
        median_s([&](cudaStream_t on) { gemm.run(out, a, b, workspace.data(), on); }, stream);
    const double seconds = median_s(grouped, stream);
    const double flops = 2.0 * static_cast<double>(rows * inner * columns);
    std::printf(
        "%-28s %lld experts %lldx%lldx%lld %9.1f us %5.0f TFLOP/s, %5.1f %% of one product's "
        "%.0f\n",
        name, static_cast<long long>(experts), static_cast<long long>(rows),
        static_cast<long long>(inner), static_cast<long long>(columns), seconds * 1e6,
        flops / seconds / 1e12, 100 * one_s / seconds, flops / one_s / 1e12);
  }

  void run() {
    row("grouped y = x w^T",
        {.rows = rows,
         .columns = columns,
         .inner = inner,
         .b_layout = GemmLayout::kTransposed,
         .a_stride = inner,
         .b_stride = inner,
         .out_stride = columns},
        y.data(), x.data(), weight.data(), [&](cudaStream_t on) {
          grouped_gemm(y.data(), x.data(), weight.data(), offsets.data(),
                       {.experts = experts,
                        .capacity = rows,
                        .columns = columns,
                        .inner = inner,
                        .b_layout = GemmLayout::kTransposed},
                       on);
        });
    row("grouped dx = dy w",
        {.rows = rows,
         .columns = inner,
         .inner = columns,
         .a_stride = columns,
         .b_stride = inner,
         .out_stride = inner},
        x.data(), y.data(), weight.data(), [&](cudaStream_t on) {
          grouped_gemm(x.data(), y.data(), weight.data(), offsets.data(),
                       {.experts = experts, .capacity = rows, .columns = inner, .inner = columns},
                       on);
        });
    row("grouped dw += dy^T x, fp32",
        {.rows = columns,
         .columns = inner,
         .inner = rows,
         .a_layout = GemmLayout::kTransposed,
         .a_stride = columns,
         .b_stride = inner,
         .out_stride = inner,
         .out_type = GemmType::kFloat,
         .sum = GradientSum::kAccumulate},
        dweight.data(), y.data(), x.data(), [&](cudaStream_t on) {
          grouped_weight_gradient(dweight.data(), y.data(), x.data(), offsets.data(),
                                  {.experts = experts, .rows = columns, .columns = inner},
                                  GradientSum::kAccumulate, on);
        });
  }
};

}  // namespace

// A layer as of Mixtral-8x7B: 8 experts, hidden 4096, width 14336; and the 32 small experts above.
void bench_grouped(cudaStream_t stream) {
  GroupedBench{.experts = 8, .rows = 16384, .columns = 28672, .inner = 4096, .stream = stream}
      .run();
  GroupedBench{.experts = 32, .rows = 32768, .columns = 1536, .inner = 2048, .stream = stream}
      .run();
}

}  // namespace shardplan
