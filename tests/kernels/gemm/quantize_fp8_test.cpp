// Rounding to fp8 against its definition on the host, bit for bit, and products of what it wrote.
#include "kernels/gemm/quantize_fp8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/warpgroups.h"
#include "tests/kernels/device.h"
#include "validator/host/fp8.h"

namespace shardplan {
namespace {

using Bytes = std::vector<std::uint8_t>;

GemmType type_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? GemmType::kE4m3 : GemmType::kE5m2;
}

template <class T>
double largest_of(const std::vector<T>& x, std::int64_t columns, std::int64_t stride) {
  double amax = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (static_cast<std::int64_t>(i) % stride < columns) {
      amax = std::max(amax, std::abs(to_double(x[i])));
    }
  }
  return amax;
}

template <class T>
void check(Fp8Format format, std::int64_t rows, std::int64_t columns, double spread) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(spread);
  const std::int64_t stride = columns + 8;
  const std::vector<T> x = random_values<T>(rows * stride, 5, 0, spread);
  const double amax = largest_of(x, columns, stride);
  const int exponent = fp8_scale_exponent(format, amax);
  Bytes want_plain(static_cast<std::size_t>(rows * columns));
  Bytes want_transposed(want_plain.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const double value = to_double(x[static_cast<std::size_t>(i * stride + j)]);
      const std::uint8_t bits =
          fp8_bits(format, rounded_to_fp8(format, std::ldexp(value, exponent)));
      want_plain[static_cast<std::size_t>(i * columns + j)] = bits;
      want_transposed[static_cast<std::size_t>(j * rows + i)] = bits;
    }
  }
  const ScopedStream stream;
  DeviceBuffer<T> dev_x(x);
  DeviceBuffer<float> scales(2);
  for (const bool has_plain : {true, false}) {
    for (const bool has_transposed : {true, false}) {
      if (!has_plain && !has_transposed) {
        continue;
      }
      const Bytes before(want_plain.size(), 0xa5);
      DeviceBuffer<std::uint8_t> plain(before), transposed(before);
      quantize_fp8({.plain = has_plain ? plain.data() : nullptr,
                    .transposed = has_transposed ? transposed.data() : nullptr,
                    .amax = scales.data(),
                    .inverse_scale = scales.data() + 1},
                   type_of(format), dev_x.data(), rows, columns, stride, stream);
      CHECK(plain.host() == (has_plain ? want_plain : before));
      CHECK(transposed.host() == (has_transposed ? want_transposed : before));
      CHECK(scales.host()[0] == static_cast<float>(amax));
      CHECK(scales.host()[1] == std::ldexp(1.0F, -exponent));
    }
  }
}

// A factor of a product [rows, inner] as fp8 holds it, on the host and on the device.
struct Factor {
  Factor(Fp8Format format, std::int64_t rows, std::int64_t inner, unsigned seed, double spread,
         cudaStream_t stream)
      : bytes(rows * inner), amax(1), inverse_scale(1) {
    const auto x = random_values<__nv_bfloat16>(rows * inner, seed, 0, spread);
    DeviceBuffer<__nv_bfloat16> dev_x(x);
    quantize_fp8(
        {.plain = bytes.data(), .amax = amax.data(), .inverse_scale = inverse_scale.data()},
        type_of(format), dev_x.data(), rows, inner, inner, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const int exponent = fp8_scale_exponent(format, largest_of(x, inner, inner));
    for (const __nv_bfloat16 value : x) {
      const double scaled = std::ldexp(to_double(value), exponent);
      values.push_back(std::ldexp(rounded_to_fp8(format, scaled), -exponent));
    }
  }
  DeviceBuffer<std::uint8_t> bytes;
  DeviceBuffer<float> amax;
  DeviceBuffer<float> inverse_scale;
  std::vector<double> values;
};

template <class Out>
void check_product(Fp8Format a_format, bool sums_fast, double tolerance) {
  constexpr std::int64_t kRows = 144, kColumns = 272, kInner = 1008;
  constexpr std::int64_t kWorkspaceBytes = 32 << 20;
  const ScopedStream stream;
  Factor a(a_format, kRows, kInner, 1, 1e-4, stream);
  Factor b(Fp8Format::kE4m3, kColumns, kInner, 2, 3, stream);
  const std::vector<Out> before = random_values<Out>(kRows * kColumns, 3, 0, 1e-2);
  std::vector<double> want(before.size());
  std::vector<double> accumulated(before.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::size_t row = i / kColumns * kInner;
    const std::size_t column = i % kColumns * kInner;
    for (std::size_t k = 0; k < kInner; ++k) {
      want[i] += a.values[row + k] * b.values[column + k];
    }
    accumulated[i] = to_double(before[i]) + want[i];
  }
  GemmShape shape = {.rows = kRows,
                     .columns = kColumns,
                     .inner = kInner,
                     .b_layout = GemmLayout::kTransposed,
                     .a_stride = kInner,
                     .b_stride = kInner,
                     .out_stride = kColumns,
                     .in_type = type_of(a_format),
                     .out_type = sizeof(Out) == 4 ? GemmType::kFloat : GemmType::kBf16,
                     .b_type = GemmType::kE4m3,
                     .sums_fast = sums_fast};
  DeviceBuffer<char> workspace(kWorkspaceBytes);
  const GemmLibrary library;
  for (const GradientSum sum : {GradientSum::kOverwrite, GradientSum::kAccumulate}) {
    shape.sum = sum;
    const Gemm gemm(library, shape, kWorkspaceBytes,
                    {.a = a.inverse_scale.data(), .b = b.inverse_scale.data()});
    DeviceBuffer<Out> out(before);
    gemm.run(out.data(), a.bytes.data(), b.bytes.data(), workspace.data(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const double apart =
        relative_error(out.host(), sum == GradientSum::kOverwrite ? want : accumulated);
    MESSAGE(gemm.name() << ": apart by " << apart);
    CHECK(apart < tolerance);
  }
}

}  // namespace

TEST_CASE("fp8 on the device is fp8 on the host, bit for bit, by rows and by columns") {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const double spread : {1.0, 1e-6, 3e4}) {
      check<__nv_bfloat16>(format, 16, 16, spread);
      check<__nv_bfloat16>(format, 128, 128, spread);
      check<__nv_bfloat16>(format, 272, 144, spread);
      check<__nv_bfloat16>(format, 1040, 4112, spread);
      check<float>(format, 144, 272, spread);
    }
  }
}

TEST_CASE("fp8 of zeros is zero, of what is not finite the largest value or no number") {
  using Bf16 = __nv_bfloat16;
  const ScopedStream stream;
  DeviceBuffer<float> scales(2);
  DeviceBuffer<std::uint8_t> bytes(256);
  const auto run = [&](const std::vector<Bf16>& x) {
    DeviceBuffer<Bf16> dev_x(x);
    quantize_fp8({.plain = bytes.data(), .amax = scales.data(), .inverse_scale = scales.data() + 1},
                 GemmType::kE4m3, dev_x.data(), 16, 16, 16, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    return bytes.host();
  };
  std::vector<Bf16> x(256, from_double<Bf16>(0));
  CHECK(run(x) == Bytes(256, 0));
  CHECK(scales.host()[1] == 1);
  x[3] = from_double<Bf16>(2);
  x[5] = from_double<Bf16>(std::numeric_limits<double>::infinity());
  Bytes got = run(x);
  CHECK(got[3] == fp8_bits(Fp8Format::kE4m3, 2));
  CHECK(got[5] == fp8_bits(Fp8Format::kE4m3, 448));
  x[7] = from_double<Bf16>(std::nan(""));
  got = run(x);
  CHECK((got[7] & 0x7f) == 0x7f);
  CHECK(scales.host()[1] == 1);
}

// Of the rounded factors: 1e-3, or what rounding the result to bf16 costs.
TEST_CASE("products of fp8 are those of the rounded factors") {
  if (!has_fp8_products()) {
    MESSAGE("SKIPPED: needs compute capability 8.9");
    return;
  }
  check_product<__nv_bfloat16>(Fp8Format::kE4m3, true, kRoundingError<__nv_bfloat16>);
  check_product<__nv_bfloat16>(Fp8Format::kE5m2, false, kRoundingError<__nv_bfloat16>);
  check_product<float>(Fp8Format::kE4m3, true, 1e-3);
  check_product<float>(Fp8Format::kE5m2, false, 1e-3);
}

}  // namespace shardplan
