#include "kernels/experts/grouped_gemm.h"

#include <doctest/doctest.h>

#include <limits>

#include "kernels/experts/grouped_tensor_cores.h"
#include "tests/kernels/device.h"
#include "tests/kernels/host_twin.h"

namespace shardplan {
namespace {

struct Case {
  std::int64_t capacity;
  std::int64_t columns;
  std::int64_t inner;
  std::vector<std::int32_t> offsets;

  std::int64_t experts() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

// Experts without rows, with one, with more than a tile; sizes that no tile divides, and rows that
// end just before, at and behind a tile, half of one and eight rows; rows before the first expert;
// more experts than a warp looks at; more tiles than multiprocessors; unused capacity.
std::vector<Case> cases() {
  std::vector<Case> all = {
      {1, 8, 8, {0, 1}},
      {40, 24, 16, {0, 0}},
      {300, 136, 72, {0, 0, 1, 140, 140, 290, 290}},
      {260, 256, 200, {0, 128, 256}},
      {200, 264, 328, {0, 200}},
      {1100, 192, 64, {0, 7, 15, 24, 87, 151, 216, 343, 471, 600, 791, 983, 1100}},
      {700, 520, 136, {13, 13, 80, 333, 600}},
      {70, 1032, 520, {0, 63, 70}},
  };
  Case many{.capacity = 450, .columns = 72, .inner = 40, .offsets = {0}};
  for (std::int32_t e = 0; e < 70; ++e) {
    many.offsets.push_back(many.offsets.back() + (e % 3 == 0 ? 13 : e % 5));
  }
  all.push_back(many);
  Case wide{.capacity = 1000, .columns = 776, .inner = 72, .offsets = {0}};
  for (std::int32_t e = 0; e < 40; ++e) { wide.offsets.push_back(wide.offsets.back() + 25); }
  all.push_back(wide);
  return all;
}

// Rows that belong to no expert are not numbers: nothing of them may come into a result.
template <class T>
std::vector<T> spoil(std::vector<T> values, const Case& c, std::int64_t width) {
  for (std::int64_t i = 0; i < c.capacity * width; ++i) {
    const std::int64_t row = i / width;
    if (row < c.offsets.front() || row >= c.offsets.back()) {
      values[static_cast<std::size_t>(i)] =
          from_double<T>(std::numeric_limits<double>::quiet_NaN());
    }
  }
  return values;
}

HostTensor offsets_of(const Case& c) {
  HostTensor offsets(1, c.experts() + 1);
  offsets.values.assign(c.offsets.begin(), c.offsets.end());
  return offsets;
}

constexpr double kUntouched = -3;

template <class T>
using Product = void (*)(T*, const T*, const T*, const std::int32_t*, const GroupedGemmShape&,
                         cudaStream_t);
template <class T, class G>
using WeightGradient = void (*)(G*, const T*, const T*, const std::int32_t*,
                                const GroupedWeightShape&, GradientSum, cudaStream_t);

template <class T>
void check_products(Product<T> product, const Case& c, GemmLayout layout, double tolerance) {
  CAPTURE(c.capacity);
  CAPTURE(c.columns);
  const bool transposed = layout == GemmLayout::kTransposed;
  const std::int64_t weight_rows = c.experts() * (transposed ? c.columns : c.inner);
  HostTensor a(c.capacity, c.inner, random_values<T>(c.capacity * c.inner, 1)),
      b(weight_rows, transposed ? c.inner : c.columns,
        random_values<T>(c.experts() * c.columns * c.inner, 2)),
      offsets = offsets_of(c),
      out(c.capacity, c.columns,
          std::vector<double>(static_cast<std::size_t>(c.capacity * c.columns), kUntouched));
  run_twin(OpKind::kGroupedGemm, {.transpose_b = transposed}, {&a, &b, &offsets}, {&out});
  ScopedStream stream;
  const std::vector<T> before(out.values.size(), from_double<T>(kUntouched));
  DeviceBuffer<T> dev_a(spoil(a.as<T>(), c, c.inner)), dev_b(b.as<T>()), dev_out(before),
      again(before);
  DeviceBuffer<std::int32_t> dev_offsets(c.offsets);
  for (DeviceBuffer<T>* to : {&dev_out, &again}) {
    product(to->data(), dev_a.data(), dev_b.data(), dev_offsets.data(),
            {.experts = c.experts(),
             .capacity = c.capacity,
             .columns = c.columns,
             .inner = c.inner,
             .b_layout = layout},
            stream);
  }
  const std::vector<T> got = dev_out.host();
  CHECK(relative_error(got, out.values) < tolerance);
  CHECK(num_differing(again.host(), got) == 0);
  std::int64_t touched = 0;
  for (std::int64_t i = 0; i < c.capacity * c.columns; ++i) {
    const std::int64_t row = i / c.columns;
    const bool owned = row >= c.offsets.front() && row < c.offsets.back();
    touched += owned || to_double(got[static_cast<std::size_t>(i)]) == kUntouched ? 0 : 1;
  }
  CHECK(touched == 0);
}

template <class T, class G>
void check_weight_gradient(WeightGradient<T, G> product, const Case& c, GradientSum sum,
                           double tolerance) {
  CAPTURE(c.capacity);
  CAPTURE(c.columns);
  const std::int64_t size = c.experts() * c.columns * c.inner;
  const std::vector<G> before = random_values<G>(size, 3);
  HostTensor dy(c.capacity, c.columns, random_values<T>(c.capacity * c.columns, 1)),
      x(c.capacity, c.inner, random_values<T>(c.capacity * c.inner, 2)),
      offsets = offsets_of(c), gradient(c.experts() * c.columns, c.inner, before);
  run_twin(OpKind::kGroupedWeightGradient, {.accumulate = sum == GradientSum::kAccumulate},
           {&dy, &x, &offsets}, {&gradient});
  ScopedStream stream;
  DeviceBuffer<T> dev_dy(spoil(dy.as<T>(), c, c.columns)), dev_x(spoil(x.as<T>(), c, c.inner));
  DeviceBuffer<std::int32_t> dev_offsets(c.offsets);
  DeviceBuffer<G> got(before), again(before);
  for (DeviceBuffer<G>* to : {&got, &again}) {
    product(to->data(), dev_dy.data(), dev_x.data(), dev_offsets.data(),
            {.experts = c.experts(), .rows = c.columns, .columns = c.inner}, sum, stream);
  }
  if (sum == GradientSum::kAccumulate || c.offsets.back() > 0) {
    CHECK(relative_error(got.host(), gradient.values) < tolerance);
  } else {
    CHECK(num_unequal(got.host(), gradient.values) == 0);  // zeros
  }
  CHECK(num_differing(again.host(), got.host()) == 0);
}

}  // namespace

TEST_CASE("grouped products are the host's on the experts' rows, and touch no other") {
  for (const Case& c : cases()) {
    for (const GemmLayout layout : {GemmLayout::kPlain, GemmLayout::kTransposed}) {
      check_products<float>(grouped_gemm<float>, c, layout, 1e-6);
      check_products<__nv_bfloat16>(grouped_gemm<__nv_bfloat16>, c, layout,
                                    kRoundingError<__nv_bfloat16>);
    }
  }
}

TEST_CASE("grouped weight gradients are the host's, zero without rows, and repeat bit for bit") {
  using Bf16 = __nv_bfloat16;
  for (const Case& c : cases()) {
    for (const GradientSum sum : {GradientSum::kOverwrite, GradientSum::kAccumulate}) {
      check_weight_gradient<float, float>(grouped_weight_gradient<float, float>, c, sum, 1e-6);
      check_weight_gradient<Bf16, float>(grouped_weight_gradient<Bf16, float>, c, sum, 1e-6);
      check_weight_gradient<Bf16, Bf16>(grouped_weight_gradient<Bf16, Bf16>, c, sum,
                                        kRoundingError<Bf16>);
    }
  }
}

TEST_CASE("the kernels for GPUs without warpgroups give the same grouped products") {
  using Bf16 = __nv_bfloat16;
  for (const Case& c : cases()) {
    for (const GemmLayout layout : {GemmLayout::kPlain, GemmLayout::kTransposed}) {
      check_products<Bf16>(grouped_gemm_on_tensor_cores<Bf16>, c, layout, kRoundingError<Bf16>);
    }
    for (const GradientSum sum : {GradientSum::kOverwrite, GradientSum::kAccumulate}) {
      check_weight_gradient<Bf16, float>(grouped_weight_gradient_on_tensor_cores<Bf16, float>, c,
                                         sum, 1e-6);
      check_weight_gradient<Bf16, Bf16>(grouped_weight_gradient_on_tensor_cores<Bf16, Bf16>, c, sum,
                                        kRoundingError<Bf16>);
    }
  }
}

}  // namespace shardplan
