// The walk over all ranks: no deadlock, hand cases, the bubbles of the literature.
#include "estimator/time/schedule_walk.h"

#include <doctest/doctest.h>

#include <vector>

namespace shardplan {
namespace {

double walked_s(const ScheduleShape& shape, const ChunkTime& time) {
  const std::vector<ChunkTime> chunks(static_cast<std::size_t>(shape.pp * shape.vpp), time);
  return walk_schedule(shape, chunks).total_s;
}

TEST_CASE("no schedule deadlocks while microbatches fill whole groups") {
  std::int64_t walked = 0;
  for (std::int64_t pp = 1; pp <= 9; ++pp) {
    for (std::int64_t m = 1; m <= 27; ++m) {
      std::vector<ScheduleShape> shapes = {
          {.schedule = Schedule::kZbv, .pp = pp, .vpp = 2, .num_microbatches = m}};
      for (const std::int64_t vpp : {1, 2, 3}) {
        for (const Schedule schedule :
             {Schedule::kGpipe, Schedule::kInterleaved1F1B, Schedule::kInterleavedZeroBubble}) {
          for (const std::int64_t group : {std::int64_t{0}, pp + 1}) {
            shapes.push_back({.schedule = schedule,
                              .pp = pp,
                              .vpp = vpp,
                              .num_microbatches = m,
                              .group = group});
          }
        }
      }
      for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1}) {
        shapes.push_back({.schedule = schedule, .pp = pp, .num_microbatches = m});
      }
      for (const ScheduleShape& shape : shapes) {
        if (m % microbatch_group(shape) == 0) {
          walked += walked_s(shape, {1, 1, 1}) > 0 ? 1 : 0;
        }
      }
    }
  }
  CHECK(walked > 1500);
}

TEST_CASE("a last group smaller than pp can make interleaved ranks wait for one another") {
  const ScheduleShape shape = {
      .schedule = Schedule::kInterleaved1F1B, .pp = 5, .vpp = 2, .num_microbatches = 7};
  CHECK_THROWS_AS(walked_s(shape, {1, 1, 1}), std::logic_error);
}

TEST_CASE("1F1B and GPipe wait p - 1 microbatches, interleaving a v-th of it") {
  const ChunkTime stage = {.forward_s = 2, .backward_input_s = 3, .backward_weight_s = 1};
  CHECK(walked_s({.schedule = Schedule::k1F1B, .pp = 4, .num_microbatches = 8}, stage) ==
        (8 + 3) * 6);
  CHECK(walked_s({.schedule = Schedule::kGpipe, .pp = 4, .num_microbatches = 8}, stage) ==
        (8 + 3) * 6);
  const ScheduleShape looped = {
      .schedule = Schedule::kInterleaved1F1B, .pp = 4, .vpp = 2, .num_microbatches = 8};
  CHECK(walked_s(looped, {.forward_s = 1, .backward_input_s = 1, .backward_weight_s = 1}) ==
        (2 * 8 + 3) * 3);
}

TEST_CASE("zero-bubble H1 shortens the bubble to (p - 1) (f + b - w)") {
  const ChunkTime stage = {.forward_s = 1, .backward_input_s = 1, .backward_weight_s = 1};
  CHECK(walked_s({.schedule = Schedule::kZbH1, .pp = 4, .num_microbatches = 8}, stage) ==
        8 * 3 + 3);
}

TEST_CASE("zero-bubble V has no bubble on any rank while forward, input and weight are equal") {
  const ScheduleShape shape = {
      .schedule = Schedule::kZbv, .pp = 4, .vpp = 2, .num_microbatches = 8};
  const std::vector<ChunkTime> chunks(8, {1, 1, 1});
  const ScheduleWalk walk = walk_schedule(shape, chunks);
  for (const std::vector<TimedAction>& rank : walk.ranks) {
    CHECK(rank.back().end_s - rank.front().start_s == 8 * 2 * 3);
  }
}

TEST_CASE("an action starts when its input is there and its rank is free, not later") {
  const ScheduleShape shape = {.schedule = Schedule::k1F1B, .pp = 2, .num_microbatches = 2};
  const std::vector<ChunkTime> chunks = {{1, 2, 0}, {3, 4, 0}};
  const ScheduleWalk walk = walk_schedule(shape, chunks);
  // Rank 1: F0 1-4, B0 4-8, F1 8-11, B1 11-15. Rank 0: F0 0-1, F1 1-2, B0 8-10, B1 15-17.
  CHECK(walk.ranks[1][2].start_s == 8);
  CHECK(walk.ranks[0][2].start_s == 8);
  CHECK(walk.ranks[0][3].start_s == 15);
  CHECK(walk.total_s == 17);
}

}  // namespace
}  // namespace shardplan
