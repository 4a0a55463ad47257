#include "kernels/experts/rows.h"

#include <doctest/doctest.h>

#include <random>

#include "tests/kernels/device.h"
#include "tests/kernels/host_twin.h"

namespace shardplan {
namespace {

struct Case {
  std::int64_t rows;  // of every member
  std::int64_t num_choices;
  std::int64_t experts;
  std::int64_t run_experts;
  std::int64_t copies;
  std::int64_t sequences;
  std::int64_t capacity;
  std::int64_t used = 0;  // experts that are chosen; 0: all
};
constexpr Case kCases[] = {
    {.rows = 1,
     .num_choices = 1,
     .experts = 1,
     .run_experts = 1,
     .copies = 1,
     .sequences = 1,
     .capacity = 1},
    {.rows = 3000,
     .num_choices = 2,
     .experts = 8,
     .run_experts = 8,
     .copies = 1,
     .sequences = 1,
     .capacity = 6000},
    {.rows = 700,
     .num_choices = 8,
     .experts = 128,
     .run_experts = 32,
     .copies = 1,
     .sequences = 2,
     .capacity = 6000},
    {.rows = 500,
     .num_choices = 3,
     .experts = 12,
     .run_experts = 6,
     .copies = 2,
     .sequences = 1,
     .capacity = 900},  // too few
    {.rows = 260,
     .num_choices = 2,
     .experts = 16,
     .run_experts = 4,
     .copies = 1,
     .sequences = 1,
     .capacity = 2100,
     .used = 3},  // experts and members without rows
};

// Counts of all members and the choices of one.
struct Inputs {
  std::vector<std::vector<std::int32_t>> chosen;  // by member
  std::vector<float> counts;
};

Inputs random_choices(const Case& c) {
  std::minstd_rand generator(5);
  const std::int64_t members = c.experts / c.run_experts * c.copies;
  Inputs in;
  in.counts.resize(static_cast<std::size_t>(members * c.sequences * c.experts));
  for (std::int64_t member = 0; member < members; ++member) {
    std::vector<std::int32_t>& chosen = in.chosen.emplace_back();
    for (std::int64_t i = 0; i < c.rows * c.num_choices; ++i) {
      const std::int64_t expert =
          static_cast<std::int64_t>(generator()) % (c.used > 0 ? c.used : c.experts);
      const std::int64_t sequence = i * c.sequences / (c.rows * c.num_choices);
      chosen.push_back(static_cast<std::int32_t>(expert));
      in.counts[static_cast<std::size_t>((member * c.sequences + sequence) * c.experts + expert)] +=
          1;
    }
  }
  return in;
}

void check_member(const Case& c, const Inputs& in, std::int64_t member) {
  const std::int64_t members = c.experts / c.run_experts * c.copies;
  const std::vector<std::int32_t>& chosen = in.chosen[static_cast<std::size_t>(member)];
  HostTensor choices(c.rows, c.num_choices), counts(members * c.sequences, c.experts, in.counts),
      rows(c.rows, c.num_choices), offsets(1, c.run_experts + 1),
      required(1, 1, std::vector<float>{7});
  choices.values.assign(chosen.begin(), chosen.end());
  run_twin(OpKind::kExpertRows,
           {.accumulate = true,
            .experts = c.run_experts,
            .copies = c.copies,
            .member = member,
            .capacity = c.capacity},
           {&choices, &counts}, {&rows, &offsets, &required});
  ScopedStream stream;
  DeviceBuffer<std::int32_t> dev_rows(c.rows * c.num_choices), dev_offsets(c.run_experts + 1),
      dev_chosen(chosen);
  DeviceBuffer<float> dev_required(std::vector<float>{7}), dev_counts(in.counts);
  const ExpertRowsShape shape{.choices = c.rows * c.num_choices,
                              .experts = c.experts,
                              .run_experts = c.run_experts,
                              .copies = c.copies,
                              .sequences = c.sequences,
                              .member = member,
                              .capacity = c.capacity};
  expert_rows(dev_rows.data(), dev_offsets.data(), dev_required.data(), dev_chosen.data(),
              dev_counts.data(), shape, RequiredRows::kMaximum, stream);
  CHECK(num_unequal(dev_rows.host(), rows.values) == 0);
  CHECK(num_unequal(dev_offsets.host(), offsets.values) == 0);
  CHECK(num_unequal(dev_required.host(), required.values) == 0);
  const float first = static_cast<float>(required.values[0]);
  dev_required.assign({first + 100});
  expert_rows(dev_rows.data(), dev_offsets.data(), dev_required.data(), dev_chosen.data(),
              dev_counts.data(), shape, RequiredRows::kMaximum, stream);
  CHECK(dev_required.host()[0] == first + 100);
}

}  // namespace

TEST_CASE("rows, offsets and the most rows are those of the host, for every member") {
  for (const Case& c : kCases) {
    CAPTURE(c.experts);
    const Inputs in = random_choices(c);
    for (std::int64_t member = 0; member < c.experts / c.run_experts * c.copies; ++member) {
      CAPTURE(member);
      check_member(c, in, member);
    }
  }
}

}  // namespace shardplan
