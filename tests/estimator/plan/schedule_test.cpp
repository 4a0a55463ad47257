// Schedules: order, completeness, and what is in flight.
#include "estimator/plan/schedule.h"
#include "estimator/plan/in_flight.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

namespace shardplan {
namespace {

// "F0.1" = forward of microbatch 0 in local chunk 1; B backward, I input gradient, W weight.
std::string written(const ScheduleShape& shape, std::int64_t pp_rank) {
  const std::map<ActionKind, char> letters = {{ActionKind::kForward, 'F'},
                                              {ActionKind::kBackward, 'B'},
                                              {ActionKind::kBackwardInput, 'I'},
                                              {ActionKind::kBackwardWeight, 'W'}};
  std::ostringstream text;
  for (const ScheduleAction& action : schedule_actions(shape, pp_rank)) {
    text << (text.tellp() > 0 ? " " : "") << letters.at(action.kind) << action.microbatch;
    if (shape.vpp > 1) {
      text << '.' << action.chunk;
    }
  }
  return text.str();
}

std::vector<ScheduleShape> shapes(std::int64_t max_pp, std::int64_t max_microbatches) {
  std::vector<ScheduleShape> all;
  for (std::int64_t m = 1; m <= max_microbatches; ++m) {
    all.push_back({.schedule = Schedule::kNone, .num_microbatches = m});
    for (std::int64_t pp = 1; pp <= max_pp; ++pp) {
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1}) {
        all.push_back({.schedule = schedule, .pp = pp, .num_microbatches = m});
      }
      all.push_back({.schedule = Schedule::kZbv, .pp = pp, .vpp = 2, .num_microbatches = m});
      for (const std::int64_t vpp : {2, 3, 5}) {
        for (const Schedule schedule :
             {Schedule::kInterleaved1F1B, Schedule::kInterleavedZeroBubble}) {
          all.push_back({.schedule = schedule, .pp = pp, .vpp = vpp, .num_microbatches = m});
          all.push_back(
              {.schedule = schedule, .pp = pp, .vpp = vpp, .num_microbatches = m, .group = pp + 1});
        }
      }
    }
  }
  return all;
}

TEST_CASE("1F1B on four ranks is the published order") {
  const ScheduleShape shape = {.schedule = Schedule::k1F1B, .pp = 4, .num_microbatches = 5};
  CHECK(written(shape, 0) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  CHECK(written(shape, 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
}

TEST_CASE("GPipe runs all forwards before the first backward") {
  const ScheduleShape shape = {.schedule = Schedule::kGpipe, .pp = 2, .num_microbatches = 3};
  CHECK(written(shape, 1) == "F0 F1 F2 B0 B1 B2");
}

TEST_CASE("interleaved 1F1B warms up with 2 (p - r - 1) + (v - 1) p chunks") {
  const ScheduleShape shape = {
      .schedule = Schedule::kInterleaved1F1B, .pp = 2, .vpp = 2, .num_microbatches = 4};
  CHECK(written(shape, 0) ==
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  CHECK(written(shape, 1) ==
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST_CASE("zero-bubble H1 delays the weight gradients of later ranks") {
  const ScheduleShape shape = {.schedule = Schedule::kZbH1, .pp = 3, .num_microbatches = 4};
  CHECK(written(shape, 0) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  CHECK(written(shape, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
}

TEST_CASE("zero-bubble V on two ranks goes down and up the V") {
  const ScheduleShape shape = {
      .schedule = Schedule::kZbv, .pp = 2, .vpp = 2, .num_microbatches = 3};
  CHECK(written(shape, 0) ==
        "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 "
        "I2.0 W2.0");
  CHECK(written(shape, 1) ==
        "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 I1.0 I2.1 I2.0 W1.0 W2.1 "
        "W2.0");
}

TEST_CASE("every chunk and microbatch is run once forward and once backward, in that order") {
  std::int64_t failures = 0;
  for (const ScheduleShape& shape : shapes(6, 13)) {
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      std::map<std::pair<std::int64_t, std::int64_t>, std::string> runs;
      for (const ScheduleAction& action : schedule_actions(shape, rank)) {
        std::string& run = runs[{action.chunk, action.microbatch}];
        switch (action.kind) {
          case ActionKind::kForward: run += 'F'; break;
          case ActionKind::kBackward: run += 'B'; break;
          case ActionKind::kBackwardInput: run += 'I'; break;
          case ActionKind::kBackwardWeight: run += 'W'; break;
        }
      }
      failures +=
          static_cast<std::int64_t>(runs.size()) == shape.vpp * shape.num_microbatches ? 0 : 1;
      for (const auto& [unit, run] : runs) {
        const bool in_range = unit.first >= 0 && unit.first < shape.vpp && unit.second >= 0 &&
                              unit.second < shape.num_microbatches;
        failures += in_range && (run == "FB" || run == "FIW") ? 0 : 1;
      }
    }
  }
  CHECK(failures == 0);
}

// Most microbatches of all chunks that are saved while an action runs, its own included; with
// `pending` also those whose weight gradient is outstanding.
struct Held {
  std::int64_t saved = 0;
  std::int64_t with_pending = 0;
};

Held most_held(const ScheduleShape& shape, std::int64_t rank) {
  Held now;
  Held most;
  for (const ScheduleAction& action : schedule_actions(shape, rank)) {
    now.saved += action.kind == ActionKind::kForward ? 1 : 0;
    now.with_pending += action.kind == ActionKind::kForward ? 1 : 0;
    most.saved = std::max(most.saved, now.saved);
    most.with_pending = std::max(most.with_pending, now.with_pending);
    const bool frees =
        action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
    now.saved -= frees ? 1 : 0;
    now.with_pending -=
        action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight ? 1 : 0;
  }
  return most;
}

TEST_CASE("in-flight microbatches follow the closed forms of 1F1B, GPipe and interleaving") {
  std::int64_t failures = 0;
  for (std::int64_t p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 19; ++m) {
      for (std::int64_t r = 0; r < p; ++r) {
        const ScheduleShape one = {.schedule = Schedule::k1F1B, .pp = p, .num_microbatches = m};
        const ScheduleShape all = {.schedule = Schedule::kGpipe, .pp = p, .num_microbatches = m};
        failures += most_held(one, r).saved == std::min(p - r, m) ? 0 : 1;
        failures += most_held(all, r).saved == m ? 0 : 1;
        for (const std::int64_t v : {2, 3, 5}) {
          if (m % p == 0) {
            const ScheduleShape looped = {
                .schedule = Schedule::kInterleaved1F1B, .pp = p, .vpp = v, .num_microbatches = m};
            const std::int64_t expected = std::min(2 * (p - r - 1) + (v - 1) * p + 1, m * v);
            failures += most_held(looped, r).saved == expected ? 0 : 1;
          }
        }
      }
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("zero-bubble H1 holds at most p and zero-bubble V at most 2 p half stages on any rank") {
  std::int64_t failures = 0;
  for (std::int64_t p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 33; ++m) {
      for (std::int64_t r = 0; r < p; ++r) {
        const ScheduleShape h1 = {.schedule = Schedule::kZbH1, .pp = p, .num_microbatches = m};
        const ScheduleShape v = {
            .schedule = Schedule::kZbv, .pp = p, .vpp = 2, .num_microbatches = m};
        failures += most_held(h1, r).with_pending == std::min(p, m) ? 0 : 1;
        failures += most_held(v, r).with_pending <= 2 * p ? 0 : 1;
      }
    }
  }
  CHECK(failures == 0);
}

// All states of the full walk, the ones that another dominates removed.
// Two chunks, two microbatches: F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 (reduce 1) B0.0 B0.1 (reduce 0).
TEST_CASE("a chunk's parameters are dropped and its gradients reduced behind its last backward") {
  const ScheduleShape shape{.schedule = Schedule::kInterleaved1F1B,
                            .pp = 2,
                            .vpp = 2,
                            .num_microbatches = 2,
                            .tells_gradients = true,
                            .tells_parameters = true};
  using Counts = std::vector<std::int64_t>;
  struct Expected {
    bool reduces;
    Counts gathered, has_gradients, reduced;
  };
  const std::vector<Expected> expected = {
      {false, {1, 1}, {0, 0}, {0, 0}}, {false, {1, 1}, {0, 0}, {0, 0}},
      {false, {1, 1}, {0, 0}, {0, 0}}, {false, {1, 1}, {0, 0}, {0, 0}},
      {false, {1, 1}, {0, 1}, {0, 0}}, {false, {1, 1}, {0, 1}, {0, 0}},
      {true, {1, 0}, {0, 0}, {0, 0}},  {false, {1, 0}, {0, 0}, {0, 1}},
      {false, {1, 0}, {1, 0}, {0, 1}}, {true, {0, 0}, {0, 0}, {0, 1}}};
  const std::vector<InFlightState> states = parameter_states(shape, 1);
  REQUIRE(states.size() == expected.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    CAPTURE(i);
    CHECK(states[i].reduces == expected[i].reduces);
    CHECK(states[i].gathered == expected[i].gathered);
    CHECK(states[i].has_gradients == expected[i].has_gradients);
    CHECK(states[i].reduced == expected[i].reduced);
  }
}

TEST_CASE("of more than three chunks the three that compute next are gathered") {
  const ScheduleShape shape{.schedule = Schedule::kInterleaved1F1B,
                            .pp = 2,
                            .vpp = 5,
                            .num_microbatches = 4,
                            .tells_gradients = true,
                            .tells_parameters = true};
  for (const InFlightState& state : parameter_states(shape, 0)) {
    const std::int64_t gathered = std::ranges::count(state.gathered, 1);
    CHECK(gathered <= 3);
    CHECK((state.reduces || state.gathered[static_cast<std::size_t>(state.chunk)] == 1));
  }
}

std::vector<InFlightState> brute_force_states(const ScheduleShape& shape, std::int64_t rank) {
  std::vector<InFlightState> all;
  InFlightState now;
  now.saved.assign(static_cast<std::size_t>(shape.vpp), 0);
  now.pending_weight = now.saved;
  now.has_gradients = now.saved;
  for (const ScheduleAction& action : schedule_actions(shape, rank)) {
    now.action = action.kind;
    now.chunk = action.chunk;
    std::int64_t& saved = now.saved[static_cast<std::size_t>(action.chunk)];
    std::int64_t& pending = now.pending_weight[static_cast<std::size_t>(action.chunk)];
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) {
      --saved;
    } else if (action.kind == ActionKind::kBackwardWeight) {
      --pending;
    }
    all.push_back(now);
    if (action.kind == ActionKind::kForward) {
      ++saved;
    } else if (action.kind == ActionKind::kBackwardInput) {
      ++pending;
    } else if (shape.tells_gradients) {
      now.has_gradients[static_cast<std::size_t>(action.chunk)] = 1;
    }
  }
  std::vector<InFlightState> kept;
  for (const InFlightState& state : all) {
    const bool dominated = std::ranges::any_of(all, [&](const InFlightState& other) {
      return other != state && other.action == state.action && other.chunk == state.chunk &&
             std::ranges::equal(other.saved, state.saved, std::ranges::greater_equal{}) &&
             std::ranges::equal(other.pending_weight, state.pending_weight,
                                std::ranges::greater_equal{}) &&
             std::ranges::equal(other.has_gradients, state.has_gradients,
                                std::ranges::greater_equal{});
    });
    if (!dominated && std::ranges::count(kept, state) == 0) {
      kept.push_back(state);
    }
  }
  return kept;
}

TEST_CASE("the peak states of a shortened schedule are those of the whole walk") {
  std::int64_t failures = 0;
  std::vector<ScheduleShape> all = shapes(4, 8);
  for (const ScheduleShape& shape : shapes(4, 1)) {
    for (const std::int64_t m : {23, 40}) {
      all.push_back(shape);
      all.back().num_microbatches = m;
    }
  }
  for (std::size_t i = 0, size = all.size(); i < size; ++i) {
    all.push_back(all[i]);
    all.back().tells_gradients = true;
  }
  for (const ScheduleShape& shape : all) {
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
      const std::vector<InFlightState> expected = brute_force_states(shape, rank);
      const std::vector<InFlightState> found = peak_in_flight_states(shape, rank);
      failures +=
          found.size() == expected.size() && std::ranges::is_permutation(found, expected) ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("a hundred thousand microbatches have the peak states of a few hundred") {
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1, Schedule::kZbv,
                                  Schedule::kInterleaved1F1B, Schedule::kInterleavedZeroBubble}) {
    const std::int64_t vpp = schedule == Schedule::k1F1B || schedule == Schedule::kZbH1 ? 1 : 2;
    ScheduleShape shape = {.schedule = schedule, .pp = 16, .vpp = vpp, .num_microbatches = 1600};
    const std::vector<InFlightState> few = peak_in_flight_states(shape, 3);
    shape.num_microbatches = 160000;
    CHECK(peak_in_flight_states(shape, 3) == few);
  }
}

}  // namespace
}  // namespace shardplan
