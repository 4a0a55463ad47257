#include "kernels/pointwise/rms_norm.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

constexpr float kEpsilon = 1e-5F;

struct Shape {
  std::int64_t rows;
  std::int64_t width;
};
// One row, rows that do not fill a round of blocks, widths beyond the registers of one block.
constexpr Shape kShapes[] = {{1, 8},      {3, 72},      {1037, 4096}, {531, 2048},
                             {600, 8192}, {300, 16384}, {265, 20480}, {2, 65536}};

template <class T>
struct Reference {
  std::vector<double> y, sum, dx, dweight;

  Reference(Shape shape, const std::vector<T>& x, const std::vector<T>& residual,
            const std::vector<T>& weight, const std::vector<T>& dy) {
    const auto width = static_cast<std::size_t>(shape.width);
    y.resize(x.size());
    sum.resize(x.size());
    dx.resize(x.size());
    dweight.assign(width, 0);
    for (std::size_t begin = 0; begin < x.size(); begin += width) {
      double squares = 0;
      double dot = 0;
      for (std::size_t j = begin; j < begin + width; ++j) {
        // The kernel keeps the sum in T and normalizes what it kept.
        sum[j] = to_double(from_double<T>(to_double(x[j]) + to_double(residual[j])));
        squares += sum[j] * sum[j];
        dot += to_double(dy[j]) * to_double(weight[j - begin]) * sum[j];
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon);
      for (std::size_t j = begin; j < begin + width; ++j) {
        y[j] = sum[j] * scale * to_double(weight[j - begin]);
        dx[j] = scale * (to_double(dy[j]) * to_double(weight[j - begin]) -
                         sum[j] * scale * scale * dot / static_cast<double>(width)) +
                to_double(residual[j]);
        dweight[j - begin] += to_double(dy[j]) * sum[j] * scale;
      }
    }
  }
};

template <class T>
void check_shape(Shape shape) {
  CAPTURE(shape.rows);
  CAPTURE(shape.width);
  const std::int64_t size = shape.rows * shape.width;
  const std::vector<T> x = random_values<T>(size, 1);
  const std::vector<T> residual = random_values<T>(size, 2);
  const std::vector<T> weight = random_values<T>(shape.width, 3, 1, 0.2);
  const std::vector<T> dy = random_values<T>(size, 4);
  const Reference<T> want(shape, x, residual, weight, dy);

  ScopedStream stream;
  DeviceBuffer<T> dev_x(x), dev_residual(residual), dev_weight(weight), dev_dy(dy), y(size),
      sum(size), dx(size);
  DeviceBuffer<float> rstd(shape.rows), partial(kRmsNormPartials * shape.width),
      dweight(std::vector<float>(static_cast<std::size_t>(shape.width), 0.0F));
  add_rms_norm_forward(y.data(), rstd.data(), sum.data(), dev_x.data(), dev_residual.data(),
                       dev_weight.data(), shape.rows, shape.width, kEpsilon, stream);
  CHECK(relative_error(sum.host(), want.sum) == 0);
  CHECK(relative_error(y.host(), want.y) < kRoundingError<T>);
  const std::vector<T> fused = y.host();
  rms_norm_forward(y.data(), rstd.data(), sum.data(), dev_weight.data(), shape.rows, shape.width,
                   kEpsilon, stream);
  CHECK(num_differing(y.host(), fused) == 0);
  DeviceBuffer<T> again(size);
  rms_norm_forward(again.data(), nullptr, sum.data(), dev_weight.data(), shape.rows, shape.width,
                   kEpsilon, stream);
  CHECK(num_differing(again.host(), fused) == 0);

  rms_norm_backward(dx.data(), dweight.data(), partial.data(), dev_dy.data(), sum.data(),
                    rstd.data(), dev_weight.data(), dev_residual.data(), shape.rows, shape.width,
                    stream);
  CHECK(relative_error(dx.host(), want.dx) < kRoundingError<T>);
  CHECK(relative_error(dweight.host(), want.dweight) < 1e-5);
  // In place, and once more into the same weight gradient.
  rms_norm_backward(dev_dy.data(), dweight.data(), partial.data(), dev_dy.data(), sum.data(),
                    rstd.data(), dev_weight.data(), dev_residual.data(), shape.rows, shape.width,
                    stream);
  CHECK(relative_error(dev_dy.host(), want.dx) < kRoundingError<T>);
  std::vector<double> twice = want.dweight;
  for (double& value : twice) { value *= 2; }
  CHECK(relative_error(dweight.host(), twice) < 1e-5);
}

std::vector<float> rounded(const std::vector<__nv_bfloat16>& values) {
  std::vector<float> wide;
  for (const __nv_bfloat16 value : values) { wide.push_back(__bfloat162float(value)); }
  return wide;
}

// The weight gradient in bf16 is that in float, rounded once, written or added.
void check_narrow_gradient(Shape shape) {
  using Bf16 = __nv_bfloat16;
  CAPTURE(shape.width);
  const std::int64_t size = shape.rows * shape.width;
  ScopedStream stream;
  DeviceBuffer<Bf16> x(random_values<Bf16>(size, 1)), dy(random_values<Bf16>(size, 2)),
      weight(random_values<Bf16>(shape.width, 3)), dx(size);
  DeviceBuffer<float> rstd(random_values<float>(shape.rows, 4, 1, 0.1)),
      partial(kRmsNormPartials * shape.width);
  const std::vector<float> before = rounded(random_values<Bf16>(shape.width, 5));
  for (const GradientSum sum : {GradientSum::kOverwrite, GradientSum::kAccumulate}) {
    DeviceBuffer<float> wide(before);
    std::vector<Bf16> narrow_before, want;
    for (const float value : before) { narrow_before.push_back(from_double<Bf16>(value)); }
    DeviceBuffer<Bf16> narrow(narrow_before);
    const auto run = [&](auto* dweight) {
      rms_norm_backward<Bf16>(dx.data(), dweight, partial.data(), dy.data(), x.data(), rstd.data(),
                              weight.data(), nullptr, shape.rows, shape.width, stream, sum);
    };
    run(wide.data());
    run(narrow.data());
    for (const float value : wide.host()) { want.push_back(from_double<Bf16>(value)); }
    CHECK(num_differing(narrow.host(), want) == 0);
  }
}

}  // namespace

TEST_CASE("RMSNorm's weight gradient in bf16 is that in fp32, rounded once") {
  for (const Shape shape : kShapes) { check_narrow_gradient(shape); }
}

TEST_CASE("RMSNorm forward and backward equal a double-precision reference in fp32") {
  for (const Shape shape : kShapes) { check_shape<float>(shape); }
}

TEST_CASE("RMSNorm forward and backward equal a double-precision reference in bf16") {
  for (const Shape shape : kShapes) { check_shape<__nv_bfloat16>(shape); }
}

}  // namespace shardplan
