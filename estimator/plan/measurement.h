// What a run on GPUs gave, in the words of estimates. Read from case lines, written by `validate`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/plan.h"

namespace shardplan {

enum class RunStatus { kOk, kOom, kTimeout, kCrash, kNcclError, kMoeOverflow, kInvalid };
inline constexpr std::array<NamedValue<RunStatus>, 7> kRunStatuses = {{
    {.value = RunStatus::kOk, .name = "ok"},
    {.value = RunStatus::kOom, .name = "oom"},
    {.value = RunStatus::kTimeout, .name = "timeout"},
    {.value = RunStatus::kCrash, .name = "crash"},
    {.value = RunStatus::kNcclError, .name = "nccl_error"},
    {.value = RunStatus::kMoeOverflow, .name = "moe_overflow"},
    {.value = RunStatus::kInvalid, .name = "invalid"},
}};

constexpr const auto& names_of(RunStatus) {
  return kRunStatuses;
}

// Bytes are of one rank; absent: not measured.
struct MeasuredRank {
  std::int64_t rank = 0;
  std::int64_t pp_rank = 0;
  bool is_largest = false;  // of all ranks, as logs say it; which one is not known
  std::optional<std::int64_t> parameters;
  std::optional<std::int64_t> allocated_after_init;
  std::optional<std::int64_t> peak_allocated_first_step;
  std::optional<std::int64_t> peak_allocated_steady;
  std::optional<std::int64_t> peak_allocated;
  std::optional<std::int64_t> peak_reserved;
  std::optional<std::int64_t> allocated_between_steps;
  std::optional<std::int64_t> device_used_end;
  std::optional<std::int64_t> reserved_end;
  std::optional<std::int64_t> context;
  std::optional<std::int64_t> device_total;
  std::optional<std::int64_t> allocation_retries;
};

struct Measurement {
  RunStatus status = RunStatus::kOk;
  std::vector<double> step_times_s;  // whole steps after warm-up, in order
  std::optional<double> tokens_per_s_per_gpu;
  std::vector<MeasuredRank> ranks;
  std::string memory_grade = {};  // of published figures: A, B, C, the surest first; empty: none
};

}  // namespace shardplan
