// Where the seconds of one optimizer step go on the critical pipeline rank, operation by operation:
// StepTime in full.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

enum class TimeBasis {
  kMeasured,   // rates measured on this GPU and its links
  kDatasheet,  // peaks of the datasheet and documented efficiencies
  kHost,       // the framework's host times
  kSchedule,   // follows from the others
};
inline constexpr std::array<NamedValue<TimeBasis>, 4> kTimeBases = {{
    {.value = TimeBasis::kMeasured, .name = "measured"},
    {.value = TimeBasis::kDatasheet, .name = "datasheet"},
    {.value = TimeBasis::kHost, .name = "host times"},
    {.value = TimeBasis::kSchedule, .name = "schedule"},
}};
constexpr const auto& names_of(TimeBasis) {
  return kTimeBases;
}

struct AccountRow {
  std::string kind = {};       // "product", "tp communication", "sends", "optimizer", "bubble"
  std::string block = {};      // "dense layer"; "step": once in a step
  std::string direction = {};  // "forward", "backward", "weight gradient", "replay", "both"
  std::string operation = {};  // "projections: product 8192x6144x4096"
  std::int64_t count = 0;      // in one step on this rank
  double visible_s = 0;        // all of them
  double hidden_s = 0;         // communication behind compute, all of them
  TimeBasis basis = TimeBasis::kDatasheet;
};

struct StepAccount {
  std::int64_t pp_rank = 0;
  std::vector<AccountRow> rows = {};
  double total_s = 0;  // StepTime::total_s: what the visible times add up to
};

StepAccount step_account(const Job& job, const Plan& plan);

// One row for each kind, in the order of their first use; only kind, count and times are set.
std::vector<AccountRow> by_kind(const StepAccount& account);

}  // namespace shardplan
