// The pipeline schedules, one row each: what others ask of a schedule. Its actions: schedule.h, its
// time: time/pipeline_time.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace shardplan {

enum class Schedule {
  kNone,  // no pipeline; only with pp == 1
  kGpipe,
  k1F1B,
  kInterleaved1F1B,
  kZbH1,                   // zero-bubble H1: memory of 1F1B, weight gradients delayed
  kInterleavedZeroBubble,  // torchtitan's
  kZbv,                    // zero-bubble V: two chunks a rank, rank 0 holds both ends
};

// Microbatches of one chunk in a row.
enum class MicrobatchGroup {
  kOne,
  kAll,     // all forwards before all backwards
  kStages,  // one for each stage, or as many as the profile says
  kRounds,  // of as many rounds as whole groups of pp fit into the microbatches, or the profile's
};

struct ScheduleRow {
  static constexpr std::int64_t kAnyNumber = std::numeric_limits<std::int64_t>::max();

  Schedule value;
  std::string_view name;
  std::int64_t least_stages = 2;
  std::int64_t most_stages = kAnyNumber;
  std::int64_t least_chunks = 1;  // of a rank
  std::int64_t most_chunks = 1;
  MicrobatchGroup group = MicrobatchGroup::kOne;
  // Groups have to be full, or at least a microbatch for each stage (Megatron-LM
  // core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving).
  bool fills_groups = false;
  // Forwards before the first backward, more for each later rank. 1F1B: p - r - 1 (Megatron-LM
  // core/pipeline_parallel/schedules.py); interleaved: (p - r - 1) * 2 + (v - 1) * group (the same
  // file, get_pp_rank_microbatches); zero bubble: p - r - 1 + (v - 1) * group.
  std::int64_t warmup_per_hop = 1;
  // Backward is split into gradients of inputs and, delayed, of weights: rank r runs r of the first
  // before the first of the second, so that saved and pending together stay at p on every rank
  // (arXiv 2401.10241, ZB-H1; torch.distributed.pipelining, ScheduleInterleavedZeroBubble).
  bool splits_backward = false;
  bool places_in_v = false;  // chunks go up the ranks and down again, else around
  // A list of actions gathers the parameters of whole chunks ahead, where FSDP2 shards them; else
  // blocks gather their own when they first run (torch.distributed.pipelining, schedules.py).
  bool gathers_ahead = false;
};

inline constexpr std::array<ScheduleRow, 7> kSchedules = {{
    {.value = Schedule::kNone,
     .name = "none",
     .least_stages = 1,
     .most_stages = 1,
     .warmup_per_hop = 0},
    {.value = Schedule::kGpipe, .name = "gpipe", .group = MicrobatchGroup::kAll},
    {.value = Schedule::k1F1B, .name = "1f1b", .least_stages = 1},  // on one: the same as none
    {.value = Schedule::kInterleaved1F1B,
     .name = "interleaved_1f1b",
     .least_chunks = 2,
     .most_chunks = ScheduleRow::kAnyNumber,
     .group = MicrobatchGroup::kStages,
     .fills_groups = true,
     .warmup_per_hop = 2,
     .gathers_ahead = true},
    {.value = Schedule::kZbH1, .name = "zb_h1", .splits_backward = true, .gathers_ahead = true},
    {.value = Schedule::kInterleavedZeroBubble,
     .name = "interleaved_zero_bubble",
     .least_chunks = 2,
     .most_chunks = ScheduleRow::kAnyNumber,
     .group = MicrobatchGroup::kRounds,
     .splits_backward = true,
     .gathers_ahead = true},
    {.value = Schedule::kZbv,
     .name = "zbv",
     .least_chunks = 2,
     .most_chunks = 2,
     .splits_backward = true,
     .places_in_v = true,
     .gathers_ahead = true},
}};

constexpr const ScheduleRow& row_of(Schedule schedule) {
  return kSchedules[static_cast<std::size_t>(schedule)];
}

static_assert([] {
  for (const ScheduleRow& row : kSchedules) {
    if (&row_of(row.value) != &row) {
      return false;
    }
  }
  return true;
}());

}  // namespace shardplan
