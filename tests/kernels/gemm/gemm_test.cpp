#include "kernels/gemm/gemm.h"

#include <doctest/doctest.h>

#include <type_traits>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr std::int64_t kWorkspaceBytes = 32 << 20;

template <class T>
constexpr GemmType kType = std::is_same_v<T, float> ? GemmType::kFloat : GemmType::kBf16;

// op(matrix)[i][j] where element (i, j) is stored by rows of `stride`, or by columns.
template <class T>
double element(const std::vector<T>& matrix, GemmLayout layout, std::int64_t stride, std::int64_t i,
               std::int64_t j) {
  return to_double(matrix[static_cast<std::size_t>(layout == GemmLayout::kPlain ? i * stride + j
                                                                                : j * stride + i)]);
}

template <class In, class Out>
void check(std::int64_t rows, std::int64_t columns, std::int64_t inner, GemmLayout a_layout,
           GemmLayout b_layout) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(inner);
  const bool a_plain = a_layout == GemmLayout::kPlain;
  const bool b_plain = b_layout == GemmLayout::kPlain;
  // Strides beyond the row: a slice of a packed matrix.
  const GemmShape shape = {.rows = rows,
                           .columns = columns,
                           .inner = inner,
                           .a_layout = a_layout,
                           .b_layout = b_layout,
                           .a_stride = (a_plain ? inner : rows) + 16,
                           .b_stride = (b_plain ? columns : inner) + 8,
                           .out_stride = columns + 24,
                           .in_type = kType<In>,
                           .out_type = kType<Out>};
  const std::vector<In> a = random_values<In>((a_plain ? rows : inner) * shape.a_stride, 1);
  const std::vector<In> b = random_values<In>((b_plain ? inner : columns) * shape.b_stride, 2);
  const std::vector<Out> before = random_values<Out>(rows * shape.out_stride, 3);
  std::vector<double> want(before.size());
  std::vector<double> accumulated(before.size());
  for (std::int64_t i = 0; i < rows * shape.out_stride; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t row = i / shape.out_stride;
    const std::int64_t column = i % shape.out_stride;
    double sum = 0;
    for (std::int64_t k = 0; column < columns && k < inner; ++k) {
      sum += element(a, a_layout, shape.a_stride, row, k) *
             element(b, b_layout, shape.b_stride, k, column);
    }
    // What stands between the rows stays.
    want[at] = column < columns ? sum : to_double(before[at]);
    accumulated[at] = to_double(before[at]) + sum;
  }
  ScopedStream stream;
  DeviceBuffer<In> dev_a(a), dev_b(b);
  DeviceBuffer<Out> out(before);
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  const Gemm gemm(library, shape, kWorkspaceBytes);
  gemm.run(out.data(), dev_a.data(), dev_b.data(), workspace.data(), stream);
  CHECK(relative_error(out.host(), want) < kRoundingError<Out>);
  DeviceBuffer<Out> sum(before);
  GemmShape adding = shape;
  adding.sum = GradientSum::kAccumulate;
  const Gemm added(library, adding, kWorkspaceBytes);
  added.run(sum.data(), dev_a.data(), dev_b.data(), workspace.data(), stream);
  CHECK(relative_error(sum.host(), accumulated) < kRoundingError<Out>);
}

template <class In, class Out>
void check_layouts() {
  for (const GemmLayout a : {GemmLayout::kPlain, GemmLayout::kTransposed}) {
    for (const GemmLayout b : {GemmLayout::kPlain, GemmLayout::kTransposed}) {
      check<In, Out>(8, 8, 8, a, b);
      check<In, Out>(136, 72, 200, a, b);
      check<In, Out>(40, 264, 1000, a, b);
    }
  }
}

}  // namespace

TEST_CASE("products of fp32 equal double precision without TF32, in every layout") {
  check_layouts<float, float>();
}

TEST_CASE("products of bf16 equal double precision, in every layout") {
  check_layouts<__nv_bfloat16, __nv_bfloat16>();
}

TEST_CASE("products of bf16 accumulate into fp32 without rounding to bf16, in every layout") {
  check_layouts<__nv_bfloat16, float>();
}

TEST_CASE("every candidate gives the product, and a choice is taken where it was made for") {
  constexpr std::int64_t kSize = 256;
  const GemmShape shape = {.rows = kSize,
                           .columns = kSize,
                           .inner = kSize,
                           .a_stride = kSize,
                           .b_stride = kSize,
                           .out_stride = kSize};
  using Bf16 = __nv_bfloat16;
  const std::vector<Bf16> a = random_values<Bf16>(kSize * kSize, 1);
  const std::vector<Bf16> b = random_values<Bf16>(kSize * kSize, 2);
  std::vector<double> want(a.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t k = 0; k < kSize; ++k) {
      want[i] += to_double(a[i / kSize * kSize + k]) * to_double(b[k * kSize + i % kSize]);
    }
  }
  const ScopedStream stream;
  DeviceBuffer<Bf16> dev_a(a), dev_b(b);
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  Gemm gemm(library, shape, kWorkspaceBytes);
  CHECK_FALSE(gemm.is_chosen());
  const std::vector<GemmAlgorithm> candidates = gemm.candidates(16);
  REQUIRE(candidates.size() > 1);
  for (const GemmAlgorithm& candidate : candidates) {
    gemm.use(candidate);
    DeviceBuffer<Bf16> out(random_values<Bf16>(kSize * kSize, 3));
    gemm.run(out.data(), dev_a.data(), dev_b.data(), workspace.data(), stream);
    CHECK(relative_error(out.host(), want) < kRoundingError<Bf16>);
  }
  const GemmLibrary tuned({{gemm.name(), candidates.back()}});
  const Gemm chosen(tuned, shape, kWorkspaceBytes);
  CHECK(chosen.is_chosen());
  DeviceBuffer<Bf16> out(random_values<Bf16>(kSize * kSize, 3));
  chosen.run(out.data(), dev_a.data(), dev_b.data(), workspace.data(), stream);
  CHECK(relative_error(out.host(), want) < kRoundingError<Bf16>);
  GemmShape adding = shape;
  adding.sum = GradientSum::kAccumulate;
  CHECK_FALSE(Gemm(tuned, adding, kWorkspaceBytes).is_chosen());
}

}  // namespace shardplan
