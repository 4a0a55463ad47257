#include "kernels/experts/exchange.h"

#include <doctest/doctest.h>

#include <memory>
#include <random>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

// Members of a group on one GPU, each with buffers of its own.
struct Case {
  std::int64_t rows;
  std::int64_t num_choices;
  std::int64_t width;
  std::int64_t runs;
  std::int64_t run_experts;
  std::int64_t copies;
  std::int64_t capacity;

  std::int64_t members() const { return runs * copies; }
};
constexpr Case kCases[] = {
    {.rows = 1,
     .num_choices = 1,
     .width = 8,
     .runs = 1,
     .run_experts = 1,
     .copies = 1,
     .capacity = 1},
    {.rows = 50,
     .num_choices = 2,
     .width = 72,
     .runs = 1,
     .run_experts = 4,
     .copies = 1,
     .capacity = 100},
    {.rows = 61,
     .num_choices = 6,
     .width = 1032,
     .runs = 4,
     .run_experts = 4,
     .copies = 1,
     .capacity = 1600},
    {.rows = 40,
     .num_choices = 3,
     .width = 4096,
     .runs = 2,
     .run_experts = 3,
     .copies = 2,
     .capacity = 130},  // some rows do not fit
};

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// Choices of every member, and the row of its destination that each gets: here in the order of
// members and choices, whatever the expert. Rows beyond the capacity occur where it is small.
struct Routes {
  std::vector<std::vector<std::int32_t>> choices, places;
};

Routes random_routes(const Case& c) {
  std::minstd_rand generator(9);
  Routes routes;
  std::vector<std::int32_t> next(at(c.runs));
  for (std::int64_t member = 0; member < c.members(); ++member) {
    std::vector<std::int32_t>& choices = routes.choices.emplace_back();
    std::vector<std::int32_t>& places = routes.places.emplace_back();
    for (std::int64_t i = 0; i < c.rows * c.num_choices; ++i) {
      const std::int64_t expert = static_cast<std::int64_t>(generator()) % (c.runs * c.run_experts);
      choices.push_back(static_cast<std::int32_t>(expert));
      places.push_back(next[at(expert / c.run_experts)]++);
    }
  }
  return routes;
}

// Buffers of all members, filled with one value.
template <class T>
class Members {
 public:
  Members(const Case& c, std::int64_t size, double value) {
    for (std::int64_t i = 0; i < c.members(); ++i) {
      buffers_.push_back(
          std::make_unique<DeviceBuffer<T>>(std::vector<T>(at(size), from_double<T>(value))));
    }
  }
  DeviceBuffer<T>& operator[](std::int64_t member) { return *buffers_[at(member)]; }
  template <class Pointer>
  MemberPointers<Pointer> pointers() {
    MemberPointers<Pointer> pointers;
    for (std::size_t i = 0; i < buffers_.size(); ++i) { pointers.at[i] = buffers_[i]->data(); }
    return pointers;
  }

 private:
  std::vector<std::unique_ptr<DeviceBuffer<T>>> buffers_;
};

ExpertExchange exchange_of(const Case& c) {
  return {.rows = c.rows,
          .num_choices = c.num_choices,
          .width = c.width,
          .run_experts = c.run_experts,
          .copies = c.copies,
          .capacity = c.capacity};
}

constexpr double kUntouched = -3;

template <class T>
void check_dispatch(const Case& c) {
  CAPTURE(c.width);
  const Routes routes = random_routes(c);
  Members<T> received(c, c.capacity * c.width, kUntouched);
  Members<float> received_weights(c, c.capacity, kUntouched);
  std::vector<std::vector<double>> want(at(c.members()),
                                        std::vector<double>(at(c.capacity * c.width), kUntouched));
  std::vector<std::vector<double>> want_weights(at(c.members()),
                                                std::vector<double>(at(c.capacity), kUntouched));
  ScopedStream stream;
  for (std::int64_t member = 0; member < c.members(); ++member) {
    const auto seed = static_cast<unsigned>(member);
    const std::vector<T> x = random_values<T>(c.rows * c.width, seed);
    const std::vector<float> weights = random_values<float>(c.rows * c.num_choices, seed + 50);
    DeviceBuffer<T> dev_x(x);
    DeviceBuffer<float> dev_weights(weights);
    DeviceBuffer<std::int32_t> choices(routes.choices[at(member)]),
        places(routes.places[at(member)]);
    expert_dispatch(received.template pointers<T>(), received_weights.pointers<float>(),
                    dev_x.data(), choices.data(), places.data(), dev_weights.data(), exchange_of(c),
                    stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (std::int64_t i = 0; i < c.rows * c.num_choices; ++i) {
      const std::int64_t row = routes.places[at(member)][at(i)];
      const std::int64_t run = routes.choices[at(member)][at(i)] / c.run_experts;
      for (std::int64_t copy = 0; copy < c.copies && row < c.capacity; ++copy) {
        for (std::int64_t j = 0; j < c.width; ++j) {
          want[at(run * c.copies + copy)][at(row * c.width + j)] =
              to_double(x[at(i / c.num_choices * c.width + j)]);
        }
        want_weights[at(run * c.copies + copy)][at(row)] = to_double(weights[at(i)]);
      }
    }
  }
  for (std::int64_t member = 0; member < c.members(); ++member) {
    CHECK(relative_error(received[member].host(), want[at(member)]) == 0);
    CHECK(relative_error(received_weights[member].host(), want_weights[at(member)]) == 0);
  }
}

template <class T>
void check_combine(const Case& c, CombineSum sum) {
  CAPTURE(c.width);
  const Routes routes = random_routes(c);
  Members<T> outputs(c, c.capacity * c.width, 0);
  Members<float> scalars(c, c.capacity, 0);
  for (std::int64_t member = 0; member < c.members(); ++member) {
    const auto seed = static_cast<unsigned>(member);
    outputs[member].assign(random_values<T>(c.capacity * c.width, seed));
    scalars[member].assign(random_values<float>(c.capacity, seed + 50));
  }
  const std::int64_t member = c.members() / 2;  // of its rows some fit where some do not
  const std::vector<T> before = random_values<T>(c.rows * c.width, 99);
  std::vector<double> want(at(c.rows * c.width));
  std::vector<double> want_scalars(at(c.rows * c.num_choices));
  for (std::size_t i = 0; i < want.size(); ++i) {
    want[i] = sum == CombineSum::kAccumulate ? to_double(before[i]) : 0;
  }
  for (std::int64_t i = 0; i < c.rows * c.num_choices; ++i) {
    const std::int64_t row = routes.places[at(member)][at(i)];
    const std::int64_t run = routes.choices[at(member)][at(i)] / c.run_experts;
    for (std::int64_t copy = 0; copy < c.copies && row < c.capacity; ++copy) {
      const std::vector<T> output = outputs[run * c.copies + copy].host();
      for (std::int64_t j = 0; j < c.width; ++j) {
        want[at(i / c.num_choices * c.width + j)] += to_double(output[at(row * c.width + j)]);
      }
      want_scalars[at(i)] += to_double(scalars[run * c.copies + copy].host()[at(row)]);
    }
  }
  ScopedStream stream;
  DeviceBuffer<T> out(before);
  DeviceBuffer<float> out_scalars(c.rows * c.num_choices);
  DeviceBuffer<std::int32_t> choices(routes.choices[at(member)]), places(routes.places[at(member)]);
  expert_combine(out.data(), out_scalars.data(), outputs.template pointers<const T>(),
                 scalars.pointers<const float>(), choices.data(), places.data(), exchange_of(c),
                 sum, stream);
  CHECK(relative_error(out.host(), want) < kRoundingError<T>);
  CHECK(relative_error(out_scalars.host(), want_scalars) < 1e-6);
}

}  // namespace

TEST_CASE("dispatch puts every row where its experts are, and touches nothing else") {
  for (const Case& c : kCases) {
    check_dispatch<float>(c);
    check_dispatch<__nv_bfloat16>(c);
  }
}

TEST_CASE("combine adds what the experts made of a row; rows that did not fit count as zero") {
  for (const Case& c : kCases) {
    for (const CombineSum sum : {CombineSum::kOverwrite, CombineSum::kAccumulate}) {
      check_combine<float>(c, sum);
      check_combine<__nv_bfloat16>(c, sum);
    }
  }
}

}  // namespace shardplan
