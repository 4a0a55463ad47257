#include "kernels/experts/router.h"

#include <doctest/doctest.h>

#include "tests/kernels/device.h"
#include "tests/kernels/host_twin.h"

namespace shardplan {
namespace {

struct Case {
  RouterShape shape;
  bool ties = false;  // many equal logits
};
// Rows that begin within a sequence and end within another; experts that no warp divides.
const Case kCases[] = {
    {{.rows = 1, .experts = 1, .num_choices = 1, .sequence_rows = 1}},
    {{.rows = 77, .experts = 8, .num_choices = 2, .sequence_rows = 77}},
    {{.rows = 100, .experts = 60, .num_choices = 4, .sequence_rows = 50, .sequences = 2}},
    {{.rows = 64,
      .experts = 128,
      .num_choices = 8,
      .first_row = 64,
      .sequence_rows = 48,
      .sequences = 3}},
    {{.rows = 33, .experts = 513, .num_choices = 32, .sequence_rows = 33}},
    {{.rows = 40, .experts = 16, .num_choices = 6, .sequence_rows = 40}, true},
    {{.rows = 60,
      .experts = 70,
      .num_choices = 9,
      .first_row = 60,
      .sequence_rows = 48,
      .sequences = 3,
      .chooses_in_turn = true,
      .first_position = 24,
      .position_gap = 72}},
};

OpAttributes attributes_of(const RouterShape& s, double value) {
  return {.value = value,
          .accumulate = true,
          .position_gap = s.position_gap,
          .query_position = s.first_position,
          .first_row = s.first_row,
          .sequence_rows = s.sequence_rows,
          .chooses_in_turn = s.chooses_in_turn};
}

std::vector<float> logits_of(const Case& c) {
  std::vector<float> logits = random_values<float>(c.shape.rows * c.shape.experts, 1);
  for (float& value : logits) { value = c.ties ? std::round(value) : value; }
  return logits;
}

}  // namespace

TEST_CASE("the router chooses as on the host, by likelihood or in turn, and counts exactly") {
  for (const Case& c : kCases) {
    const RouterShape& s = c.shape;
    CAPTURE(s.experts);
    const std::vector<float> logits = logits_of(c);
    HostTensor probabilities(s.rows, s.experts, logits), choices(s.rows, s.num_choices),
        weights(s.rows, s.num_choices), counts(s.sequences, s.experts);
    run_twin(OpKind::kRouterForward, attributes_of(s, 0), {&probabilities},
             {&probabilities, &choices, &weights, &counts});
    ScopedStream stream;
    DeviceBuffer<float> dev_probabilities(logits), dev_weights(s.rows * s.num_choices),
        dev_counts(s.sequences * s.experts);
    DeviceBuffer<std::int32_t> dev_choices(s.rows * s.num_choices);
    router_forward(dev_probabilities.data(), dev_choices.data(), dev_weights.data(),
                   dev_counts.data(), dev_probabilities.data(), s, stream);
    CHECK(relative_error(dev_probabilities.host(), probabilities.values) < 1e-6);
    CHECK(relative_error(dev_weights.host(), weights.values) < 1e-6);
    CHECK(num_unequal(dev_choices.host(), choices.values) == 0);
    CHECK(num_unequal(dev_counts.host(), counts.values) == 0);
  }
}

template <class T>
void check_backward(double tolerance) {
  for (const Case& c : kCases) {
    const RouterShape& s = c.shape;
    CAPTURE(s.experts);
    HostTensor probabilities(s.rows, s.experts, logits_of(c)), choices(s.rows, s.num_choices),
        weights(s.rows, s.num_choices), own_counts(s.sequences, s.experts);
    run_twin(OpKind::kRouterForward, attributes_of(s, 0), {&probabilities},
             {&probabilities, &choices, &weights, &own_counts});
    const std::vector<float> rounded = probabilities.as<float>();
    HostTensor in(s.rows, s.experts, rounded), dlogits(s.rows, s.experts),
        dweights(s.rows, s.num_choices, random_values<float>(s.rows * s.num_choices, 2)),
        counts(s.sequences, s.experts, random_values<float>(s.sequences * s.experts, 3, 20)),
        loss(1, 1, std::vector<float>{0.5F});
    constexpr double kSlope = 0.01;
    run_twin(OpKind::kRouterBackward, attributes_of(s, kSlope), {&in, &choices, &dweights, &counts},
             {&dlogits, &loss});
    ScopedStream stream;
    DeviceBuffer<float> dev_in(rounded), dev_dweights(dweights.as<float>()),
        dev_counts(counts.as<float>());
    DeviceBuffer<std::int32_t> dev_choices(choices.as<std::int32_t>());
    DeviceBuffer<double> partial(kRouterPartials);
    std::vector<T> first;
    for (int run = 0; run < 2; ++run) {
      DeviceBuffer<float> dev_loss(std::vector<float>{0.5F});
      DeviceBuffer<T> dev_dlogits(s.rows * s.experts);
      router_backward(dev_dlogits.data(), dev_loss.data(), partial.data(), dev_in.data(),
                      dev_choices.data(), dev_dweights.data(), dev_counts.data(), kSlope, s,
                      stream);
      if (s.experts > 1) {  // a lone expert has no gradient but rounding
        CHECK(relative_error(dev_dlogits.host(), dlogits.values) < tolerance);
      }
      CHECK(relative_error(dev_loss.host(), loss.values) < 1e-6);
      first = run == 0 ? dev_dlogits.host() : first;
      CHECK(num_differing(dev_dlogits.host(), first) == 0);
    }
  }
}

TEST_CASE("the router's gradient is the host's, with that of the auxiliary loss, and repeats") {
  check_backward<float>(1e-5);
  check_backward<__nv_bfloat16>(1.0 / 256);
}

}  // namespace shardplan
