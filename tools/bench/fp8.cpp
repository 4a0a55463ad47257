// Products in fp8 and what stands before them: the rounding of both factors.
#include "tools/bench/fp8.h"

#include <cstdio>
#include <random>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/quantize_fp8.h"
#include "tools/bench/kernels.h"

namespace shardplan {
namespace {

constexpr std::int64_t kTokens = 8192, kIn = 4096, kOut = 28672, kWorkspaceBytes = 32 << 20;

// Read once for the largest value, once more to be rounded, written by rows or columns or both.
void bench_rounding(Bench& bench, std::int64_t rows, std::int64_t columns) {
  DeviceBuffer<__nv_bfloat16> x(random_values<__nv_bfloat16>(rows * columns, 1));
  DeviceBuffer<std::uint8_t> plain(rows * columns), transposed(rows * columns);
  DeviceBuffer<float> scales(2);
  const auto row = [&](const char* name, int copies, std::uint8_t* by_rows,
                       std::uint8_t* by_columns) {
    const Fp8Matrix out = {.plain = by_rows,
                           .transposed = by_columns,
                           .amax = scales.data(),
                           .inverse_scale = scales.data() + 1};
    bench.row(std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(columns),
              static_cast<double>((4 + copies) * rows * columns), [&](cudaStream_t on) {
                quantize_fp8(out, GemmType::kE4m3, x.data(), rows, columns, columns, on);
              });
  };
  row("fp8 of bf16, rows", 1, plain.data(), nullptr);
  row("fp8 of bf16, columns", 1, nullptr, transposed.data());
  row("fp8 of bf16, both", 2, plain.data(), transposed.data());
}

// Random bytes that are numbers of both formats: the exponent is not all ones.
DeviceBuffer<std::uint8_t> random_fp8(std::int64_t size, unsigned seed) {
  std::minstd_rand generator(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::uint8_t& byte : bytes) { byte = static_cast<std::uint8_t>((generator() >> 8) & 0xbf); }
  return DeviceBuffer<std::uint8_t>(bytes);
}

void bench_product(const char* name, const GemmShape& shape, cudaStream_t stream) {
  DeviceBuffer<std::uint8_t> a = random_fp8(shape.rows * shape.inner, 1);
  DeviceBuffer<std::uint8_t> b = random_fp8(shape.columns * shape.inner, 2);
  DeviceBuffer<float> out(shape.rows * shape.columns);
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  const Gemm gemm(library, shape, kWorkspaceBytes);
  const double seconds = median_s(
      [&](cudaStream_t on) { gemm.run(out.data(), a.data(), b.data(), workspace.data(), on); },
      stream);
  const double flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                       static_cast<double>(shape.inner);
  std::printf("%-44s %9.1f us %8.0f TFLOP/s\n", name, seconds * 1e6, flops / seconds / 1e12);
}

GemmShape shape_of(std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  return {.rows = rows,
          .columns = columns,
          .inner = inner,
          .b_layout = GemmLayout::kTransposed,
          .a_stride = inner,
          .b_stride = inner,
          .out_stride = columns,
          .in_type = GemmType::kE4m3,
          .b_type = GemmType::kE4m3};
}

}  // namespace

void bench_fp8(Bench& bench) {
  bench_rounding(bench, kTokens, kIn);
  bench_rounding(bench, kTokens, kOut);
  GemmShape forward = shape_of(kTokens, kOut, kIn);
  bench_product("gemm y = x w^T, fp8, summed in float", forward, bench.stream());
  forward.sums_fast = true;
  bench_product("gemm y = x w^T, fp8, fast sums", forward, bench.stream());
  GemmShape input = shape_of(kTokens, kIn, kOut);
  input.in_type = GemmType::kE5m2;
  bench_product("gemm dx = dy w, fp8", input, bench.stream());
  GemmShape weight = shape_of(kOut, kIn, kTokens);
  weight.in_type = GemmType::kE5m2;
  weight.out_type = GemmType::kFloat;
  weight.sum = GradientSum::kAccumulate;
  bench_product("gemm dw += dy^T x, fp8 to fp32", weight, bench.stream());
}

}  // namespace shardplan
