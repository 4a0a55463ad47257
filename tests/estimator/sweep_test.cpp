// A sweep: the estimator asked random valid cases. It must answer each with numbers that make
// sense, and search's price of it must be the same. SHARDPLAN_SWEEP_CASES says how many, and
// SHARDPLAN_SWEEP_SEED where to begin (tools/check sweep).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/price/price.h"
#include "tests/estimator/random_case_lines.h"

namespace shardplan {
namespace {

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

bool makes_sense(double number) {
  return std::isfinite(number) && number >= 0;
}

bool makes_sense(const Row& row) {
  return row.elements >= 0 && row.bytes >= 0 && row.copies >= 0 && row.total_bytes() >= 0;
}

std::string fault_of(const StageMemory& stage) {
  if (!std::ranges::all_of(stage.rows, [](const Row& row) { return makes_sense(row); })) {
    return "a row is negative";
  }
  if (stage.moments.empty()) {
    return "no moment";
  }
  for (const std::int64_t bytes :
       {stage.num_layers, stage.parameters, stage.built_bytes, stage.state_bytes,
        stage.first_step_bytes, stage.steady_bytes, stage.outside_bytes}) {
    if (bytes < 0) {
      return "a total is negative";
    }
  }
  const bool are_in_order = stage.allocated_bytes >= 0 &&
                            stage.required_bytes >= stage.allocated_bytes &&
                            stage.reserved_bytes >= stage.required_bytes &&
                            stage.device_used_bytes >= stage.reserved_bytes;
  return are_in_order ? "" : "totals are not in order";
}

std::string fault_of(const StepTime& time) {
  for (const double seconds :
       {time.compute_s, time.recompute_s, time.exposed_tp_s, time.exposed_cp_s, time.exposed_ep_s,
        time.exposed_pp_s, time.exposed_dp_s, time.bubble_s, time.optimizer_s, time.host_s,
        time.model_flops_per_token, time.mfu}) {
    if (!makes_sense(seconds)) {
      return "a part of the step is negative or no number";
    }
  }
  const bool is_positive = time.total_s > 0 && time.tokens_per_s_per_gpu > 0;
  return is_positive && makes_sense(time.total_s) && makes_sense(time.tokens_per_s_per_gpu)
             ? ""
             : "the step takes no time";
}

// "" where all is well.
std::string fault_of(const Job& job, const Plan& plan) {
  const MemoryEstimate memory = estimate_memory(job, plan);
  for (const StageMemory& stage : memory.stages) {
    if (std::string fault = fault_of(stage); !fault.empty()) {
      return fault;
    }
  }
  const StepTime time = estimate_step_time(job, plan);
  if (std::string fault = fault_of(time); !fault.empty()) {
    return fault;
  }
  PriceTable table = build_price_table(job);
  const Price priced = price(table, plan);
  const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
  const auto fullest = std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
  if (priced.allocated_bytes != largest->allocated_bytes || priced.step_time_s != time.total_s) {
    return "search has another price";
  }
  // Experts' tensors of ever new sizes may leave more in the cache than the bound expects.
  const bool is_bounded = load_spread(job, plan) == 0;
  return !is_bounded || priced.device_used_bytes >= fullest->device_used_bytes
             ? ""
             : "search's bound is below what the device uses";
}

std::string fault_of(const Case& asked) {
  try {
    return fault_of(asked.job, asked.plan);
  } catch (const std::exception& error) { return error.what(); }
}

TEST_CASE("random valid cases get finite answers that are not negative, and the same price") {
  const Library library;
  const std::int64_t cases = from_environment("SHARDPLAN_SWEEP_CASES", 300);
  const std::int64_t seed = from_environment("SHARDPLAN_SWEEP_SEED", 1);
  RandomCaseLines lines(library, static_cast<std::uint64_t>(seed));
  for (std::int64_t i = 0; i < cases; ++i) {
    const RandomCaseLine line = lines.next();
    const std::string fault = fault_of(line.read);
    INFO(line.text);
    CHECK(fault == "");
  }
}

}  // namespace
}  // namespace shardplan
