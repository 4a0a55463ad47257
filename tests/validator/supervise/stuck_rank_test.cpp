#include "validator/supervise/stuck_rank.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/validator/layouts.h"

namespace shardplan {
namespace {

// All ranks run their operations in the order of their launches until nobody can go on; one of them
// never gets past one of its own.
class StandingRun {
 public:
  StandingRun(const std::vector<Program>& programs, std::int64_t rank, std::int64_t operation)
      : programs_(programs), rank_(rank), operation_(operation), at_(programs.size(), 0) {
    for (const Program& program : programs) { launches_.push_back(launch_order(program)); }
    while (anybody_moves()) {}
  }
  std::vector<Position> positions() const {
    std::vector<Position> positions;
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      const bool is_done = at_[rank] == std::ssize(programs_[rank].operations);
      positions.push_back({.phase = is_done ? RunPhase::kReport : RunPhase::kSteps,
                           .step = 0,  // stays that of the last one
                           .operation = is_done ? -1 : launched(rank)});
    }
    return positions;
  }

 private:
  using Ranks = std::vector<std::int64_t>;

  const Operation* operation_of(std::int64_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return at_[r] < std::ssize(programs_[r].operations)
               ? &programs_[r].operations[static_cast<std::size_t>(launched(r))]
               : nullptr;
  }
  std::int64_t launched(std::size_t rank) const {
    return launches_[rank][static_cast<std::size_t>(at_[rank])];
  }
  const Group& group_of(std::int64_t rank, const Operation& op) const {
    return programs_[static_cast<std::size_t>(rank)].groups[static_cast<std::size_t>(op.group)];
  }
  void move(std::int64_t rank) { ++at_[static_cast<std::size_t>(rank)]; }

  bool anybody_moves() {
    bool moves = false;
    for (std::int64_t rank = 0; rank < std::ssize(programs_); ++rank) {
      moves = can_move(rank) || moves;
    }
    return moves;
  }

  bool can_move(std::int64_t rank) {
    const Operation* op = operation_of(rank);
    if (op == nullptr ||
        (rank == rank_ && launched(static_cast<std::size_t>(rank)) == operation_)) {
      return false;
    }
    if (!is_communication(op->kind)) {
      move(rank);
      return true;
    }
    const Group& group = group_of(rank, *op);
    if (op->kind == OpKind::kSend || op->kind == OpKind::kReceive) {
      const std::int64_t peer = group.ranks[static_cast<std::size_t>(op->attributes.peer)];
      const bool sends = op->kind == OpKind::kSend;
      std::int64_t& waiting =
          messages_[{sends ? rank : peer, sends ? peer : rank, op->attributes.tag}];
      if (!sends && waiting == 0) {
        return false;
      }
      waiting += sends ? 1 : -1;
      move(rank);
      return true;
    }
    const auto is_here = [&](std::int64_t member) {
      const Operation* other = operation_of(member);
      return other != nullptr && other->kind == op->kind && other->group >= 0 &&
             group_of(member, *other).kind == group.kind &&
             group_of(member, *other).ranks == group.ranks;
    };
    if (!std::ranges::all_of(group.ranks, is_here)) {
      return false;
    }
    const Ranks members = group.ranks;
    for (const std::int64_t member : members) { move(member); }
    return true;
  }

  const std::vector<Program>& programs_;
  std::int64_t rank_;
  std::int64_t operation_;
  std::vector<std::vector<std::int64_t>> launches_;  // by rank
  std::vector<std::int64_t> at_;                     // by rank, a place among them
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> messages_;
};

void check_layout(const ModelSpec& model, std::int64_t world, const Plan& plan) {
  const std::vector<Program> programs = lower_all(tiny_job(model, world), plan);
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const auto count = std::ssize(programs[static_cast<std::size_t>(rank)].operations);
    for (std::int64_t i = rank; i < count; i += std::max<std::int64_t>(1, count / 12)) {
      const auto& op =
          programs[static_cast<std::size_t>(rank)].operations[static_cast<std::size_t>(i)];
      if (is_communication(op.kind)) {
        continue;  // whoever stands there may only wait
      }
      const StandingRun run(programs, rank, i);
      CAPTURE(text_of(plan));
      CAPTURE(i);
      CHECK(stuck_rank(run.positions(), [&](std::int64_t each) {
              return programs[static_cast<std::size_t>(each)];
            }) == rank);
    }
  }
}

}  // namespace

TEST_CASE("of ranks that stand still, the one that the others wait for is named") {
  check_layout(tiny_model(), 4,
               {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = Schedule::k1F1B});
  check_layout(tiny_model(), 4, {.pp = 4, .schedule = Schedule::k1F1B});
  check_layout(tiny_model(), 4, {.tp = 2, .zero = 1, .sequence_parallel = true});
  check_layout(tiny_model(), 4, {.cp = 2, .zero = 3, .cp_method = CpMethod::kRing});
  check_layout(tiny_moe(), 4, {.tp = 1, .ep = 2, .zero = 1});
}

TEST_CASE("a stopped rank is named before all, and one that has not come as far as steps") {
  std::vector<Position> positions(3, {.phase = RunPhase::kSteps});
  const auto no_program = [](std::int64_t) -> Program { throw std::logic_error("not asked"); };
  positions[1].is_stopped = true;
  CHECK(stuck_rank(positions, no_program) == 1);
  positions[1].is_stopped = false;
  positions[2].phase = RunPhase::kLoad;
  CHECK(stuck_rank(positions, no_program) == 2);
  positions = std::vector<Position>(3, {.phase = RunPhase::kCommit, .is_waiting = true});
  positions[1].is_waiting = false;
  CHECK(stuck_rank(positions, no_program) == 1);
}

TEST_CASE("a rank that reports is behind nobody") {
  const std::vector<Program> programs =
      lower_all(tiny_job(tiny_model(), 2), {.tp = 2, .sequence_parallel = true});
  const auto last =
      std::ranges::find_if(programs[0].operations.rbegin(), programs[0].operations.rend(),
                           [](const Operation& op) { return op.group >= 0; });
  const auto at = std::ssize(programs[0].operations) - 1 - (last - programs[0].operations.rbegin());
  CHECK(stuck_rank({{.phase = RunPhase::kSteps, .step = 3, .operation = at},
                    {.phase = RunPhase::kReport, .step = 3, .is_waiting = true}},
                   [&](std::int64_t rank) { return programs[static_cast<std::size_t>(rank)]; }) ==
        0);
}

}  // namespace shardplan
