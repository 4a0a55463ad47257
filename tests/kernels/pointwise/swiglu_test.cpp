#include "kernels/pointwise/swiglu.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t width;
};
constexpr Shape kShapes[] = {{1, 8}, {3, 72}, {257, 1368}, {33, 14336}};

template <class T>
void check_shape(Shape shape) {
  CAPTURE(shape.rows);
  CAPTURE(shape.width);
  const std::int64_t size = shape.rows * shape.width;
  const std::vector<T> gate_up = random_values<T>(2 * size, 1, 0, 3);
  const std::vector<T> dout = random_values<T>(size, 2);
  std::vector<double> out(dout.size());
  std::vector<double> dgate_up(gate_up.size());
  for (std::int64_t i = 0; i < size; ++i) {
    const auto gate_at =
        static_cast<std::size_t>(i / shape.width * 2 * shape.width + i % shape.width);
    const auto up_at = gate_at + static_cast<std::size_t>(shape.width);
    const double gate = to_double(gate_up[gate_at]);
    const double up = to_double(gate_up[up_at]);
    const double gradient = to_double(dout[static_cast<std::size_t>(i)]);
    const double share = 1 / (1 + std::exp(-gate));
    out[static_cast<std::size_t>(i)] = gate * share * up;
    dgate_up[gate_at] = gradient * up * share * (1 + gate * (1 - share));
    dgate_up[up_at] = gradient * gate * share;
  }
  ScopedStream stream;
  DeviceBuffer<T> dev_gate_up(gate_up), dev_dout(dout), dev_out(size), dev_dgate_up(2 * size);
  swiglu_forward(dev_out.data(), dev_gate_up.data(), shape.rows, shape.width, stream);
  CHECK(relative_error(dev_out.host(), out) < kRoundingError<T>);
  const std::vector<T> forward = dev_out.host();

  swiglu_backward<T>(dev_dgate_up.data(), nullptr, dev_dout.data(), dev_gate_up.data(), shape.rows,
                     shape.width, stream);
  CHECK(relative_error(dev_dgate_up.host(), dgate_up) < kRoundingError<T>);
  // In place, with the forward output once more over the gradient that was read.
  swiglu_backward(dev_gate_up.data(), dev_dout.data(), dev_dout.data(), dev_gate_up.data(),
                  shape.rows, shape.width, stream);
  CHECK(num_differing(dev_gate_up.host(), dev_dgate_up.host()) == 0);
  CHECK(num_differing(dev_dout.host(), forward) == 0);
}

}  // namespace

TEST_CASE("SwiGLU forward and backward equal a double-precision reference in fp32") {
  for (const Shape shape : kShapes) { check_shape<float>(shape); }
}

TEST_CASE("SwiGLU forward and backward equal a double-precision reference in bf16") {
  for (const Shape shape : kShapes) { check_shape<__nv_bfloat16>(shape); }
}

TEST_CASE("SwiGLU stays finite where exp(-gate) overflows") {
  const std::vector<float> gate_up = {-100, 100, -1e4F, 1e4F, 0, -90, 90, -1e30F,
                                      1,    1,   1,     1,    1, 1,   1,  1};
  ScopedStream stream;
  DeviceBuffer<float> dev_gate_up(gate_up), out(8);
  swiglu_forward(out.data(), dev_gate_up.data(), 1, 8, stream);
  const std::vector<float> want = {0, 100, 0, 1e4F, 0, 0, 90, 0};
  const std::vector<float> got = out.host();
  for (std::size_t i = 0; i < want.size(); ++i) { CHECK(std::abs(got[i] - want[i]) < 1e-30F); }
}

}  // namespace shardplan
