// The numbers of the time model that a step rests on, and which parts of its account each moves.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "estimator/plan/host_table.h"
#include "estimator/plan/job.h"
#include "estimator/plan/time_constants.h"

namespace shardplan {

// Where a number is stated.
enum class NumberTable {
  kTime,          // constants of the time model
  kGpu,           // rates of the GPU's file that `calibrate` found, or that last ("sustained/...")
  kHost,          // what the framework's host takes
  kCompiledHost,  // the same of compiled layers
};
inline constexpr std::array<NamedValue<NumberTable>, 4> kNumberTables = {{
    {.value = NumberTable::kTime, .name = "time"},
    {.value = NumberTable::kGpu, .name = "gpu"},
    {.value = NumberTable::kHost, .name = "host"},
    {.value = NumberTable::kCompiledHost, .name = "compiled_host"},
}};
constexpr const auto& names_of(NumberTable) {
  return kNumberTables;
}

struct StepNumber {
  NumberTable table = NumberTable::kTime;
  std::string_view name;
  // Nothing: rates of many sizes.
  std::variant<std::monostate, double, HostCost, ChoiceCost, std::vector<CurvePoint>> value;
  std::string_view unit;           // "s", "FLOP/s", "share"; nothing: a plain number
  std::vector<std::string> parts;  // kinds of AccountRow, in the account's order
};

// Those of which a percent more or less moves a part of the step that does not follow from others.
std::vector<StepNumber> step_numbers(const Job& job, const Plan& plan);

}  // namespace shardplan
