#include "kernels/experts/swiglu.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"
#include "tests/kernels/host_twin.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t capacity;
  std::int64_t rows;
  std::int64_t width;
};
constexpr Shape kShapes[] = {{1, 1, 8}, {40, 0, 72}, {77, 50, 72}, {300, 299, 768}, {90, 90, 4104}};

constexpr double kUntouched = -3;

// The first `rows` of a tensor, and whether the others are as they were.
template <class T>
std::vector<T> first_rows(const std::vector<T>& values, const Shape& shape, std::int64_t width) {
  const auto size = static_cast<std::size_t>(shape.rows * width);
  std::int64_t touched = 0;
  for (std::size_t i = size; i < values.size(); ++i) {
    touched += to_double(values[i]) == kUntouched ? 0 : 1;
  }
  CHECK(touched == 0);
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size)};
}

template <class T>
void check_shape(const Shape& s) {
  CAPTURE(s.width);
  HostTensor gate_up(s.capacity, 2 * s.width, random_values<T>(s.capacity * 2 * s.width, 1)),
      weights(s.capacity, 1, random_values<float>(s.capacity, 2, 0.5)),
      dout(s.capacity, s.width, random_values<T>(s.capacity * s.width, 3)), offsets(1, 3),
      out(s.rows, s.width), again(s.rows, s.width), dgate_up(s.rows, 2 * s.width),
      dweights(s.rows, 1);
  offsets.values = {0, static_cast<double>(s.rows / 2), static_cast<double>(s.rows)};
  run_twin(OpKind::kExpertSwigluForward, {}, {&gate_up, &weights, &offsets}, {&out});
  run_twin(OpKind::kExpertSwigluBackward, {}, {&dout, &gate_up, &weights, &offsets},
           {&dgate_up, &dweights, &again});
  const auto untouched = [&](std::int64_t width) {
    return std::vector<T>(static_cast<std::size_t>(s.capacity * width), from_double<T>(kUntouched));
  };
  ScopedStream stream;
  DeviceBuffer<T> dev_gate_up(gate_up.as<T>()), dev_dout(dout.as<T>()), dev_out(untouched(s.width)),
      dev_again(untouched(s.width)), dev_dgate_up(untouched(2 * s.width));
  DeviceBuffer<float> dev_weights(weights.as<float>()),
      dev_dweights(std::vector<float>(static_cast<std::size_t>(s.capacity), kUntouched));
  DeviceBuffer<std::int32_t> num_rows(std::vector<std::int32_t>{static_cast<int>(s.rows)});
  expert_swiglu_forward(dev_out.data(), dev_gate_up.data(), dev_weights.data(), num_rows.data(),
                        s.capacity, s.width, stream);
  expert_swiglu_backward(dev_dgate_up.data(), dev_dweights.data(), dev_again.data(),
                         dev_dout.data(), dev_gate_up.data(), dev_weights.data(), num_rows.data(),
                         s.capacity, s.width, stream);
  const std::vector<T> got = first_rows(dev_out.host(), s, s.width);
  CHECK(num_differing(first_rows(dev_again.host(), s, s.width), got) == 0);
  const std::vector<T> dgot = first_rows(dev_dgate_up.host(), s, 2 * s.width);
  const std::vector<float> dweights_got = first_rows(dev_dweights.host(), s, 1);
  if (s.rows > 0) {
    CHECK(relative_error(got, out.values) < kRoundingError<T>);
    CHECK(relative_error(dgot, dgate_up.values) < kRoundingError<T>);
    CHECK(relative_error(dweights_got, dweights.values) < 1e-5);
  }
  // In place, and without the output.
  expert_swiglu_backward<T>(dev_gate_up.data(), dev_dweights.data(), nullptr, dev_dout.data(),
                            dev_gate_up.data(), dev_weights.data(), num_rows.data(), s.capacity,
                            s.width, stream);
  const std::vector<T> in_place = dev_gate_up.host();
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < dgot.size(); ++i) {
    differing += to_double(in_place[i]) == to_double(dgot[i]) ? 0 : 1;
  }
  CHECK(differing == 0);
}

}  // namespace

TEST_CASE("the experts' SwiGLU is the host's on the rows there are, and touches no other") {
  for (const Shape& shape : kShapes) {
    check_shape<float>(shape);
    check_shape<__nv_bfloat16>(shape);
  }
}

}  // namespace shardplan
