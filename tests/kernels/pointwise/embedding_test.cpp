#include "kernels/pointwise/embedding.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t width;
  std::int64_t first_token;
  std::int64_t num_tokens;
  std::int64_t vocabulary;
};
constexpr Shape kShapes[] = {
    {1, 8, 0, 1, 1}, {77, 72, 0, 50, 50}, {3001, 1032, 500, 700, 2000}, {2000, 4096, 0, 3, 3}};

template <class T>
void check_shape(const Shape& shape) {
  CAPTURE(shape.rows);
  CAPTURE(shape.width);
  std::minstd_rand generator(3);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(static_cast<std::int64_t>(generator()) % shape.vocabulary);
  }
  const std::vector<T> table = random_values<T>(shape.num_tokens * shape.width, 1);
  const std::vector<T> dout = random_values<T>(shape.rows * shape.width, 2);
  const std::vector<float> before = random_values<float>(shape.num_tokens * shape.width, 3);
  std::vector<T> want_out(dout.size(), from_double<T>(0));
  std::vector<double> want_dtable(before.begin(), before.end());
  for (std::size_t i = 0; i < dout.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / shape.width;
    const std::int64_t token = tokens[static_cast<std::size_t>(row)] - shape.first_token;
    if (token >= 0 && token < shape.num_tokens) {
      const auto at = static_cast<std::size_t>(token * shape.width +
                                               static_cast<std::int64_t>(i) % shape.width);
      want_out[i] = table[at];
      want_dtable[at] += to_double(dout[i]);
    }
  }
  ScopedStream stream;
  DeviceBuffer<std::int32_t> dev_tokens(tokens), scratch(embedding_backward_scratch(shape.rows));
  DeviceBuffer<T> dev_table(table), dev_dout(dout), out(shape.rows * shape.width);
  DeviceBuffer<float> dtable(before), again(before);
  embedding_forward(out.data(), dev_table.data(), dev_tokens.data(), shape.rows, shape.width,
                    shape.first_token, shape.num_tokens, stream);
  CHECK(num_differing(out.host(), want_out) == 0);
  for (DeviceBuffer<float>* to : {&dtable, &again}) {
    embedding_backward(to->data(), scratch.data(), dev_dout.data(), dev_tokens.data(), shape.rows,
                       shape.width, shape.first_token, shape.num_tokens, stream);
  }
  CHECK(relative_error(dtable.host(), want_dtable) < 1e-6);
  CHECK(num_differing(again.host(), dtable.host()) == 0);
  if constexpr (sizeof(T) == 2) {
    DeviceBuffer<T> narrow(dev_table.host());
    std::vector<float> wide_before;
    for (const T value : table) { wide_before.push_back(static_cast<float>(to_double(value))); }
    DeviceBuffer<float> wide(wide_before);
    const auto run = [&](auto* to) {
      embedding_backward(to, scratch.data(), dev_dout.data(), dev_tokens.data(), shape.rows,
                         shape.width, shape.first_token, shape.num_tokens, stream);
    };
    run(narrow.data());
    run(wide.data());
    std::vector<T> want;
    for (const float value : wide.host()) { want.push_back(from_double<T>(value)); }
    CHECK(num_differing(narrow.host(), want) == 0);  // summed in float, rounded once
  }
}

}  // namespace

TEST_CASE("embedding gathers its shard's rows; its gradient is the exact sum and repeats exactly") {
  for (const Shape& shape : kShapes) {
    check_shape<float>(shape);
    check_shape<__nv_bfloat16>(shape);
  }
}

}  // namespace shardplan
