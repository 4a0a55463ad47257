// Predictions held against measurements: pairs of bytes, errors, and what they say about verdicts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/case_line.h"
#include "tools/commands/command.h"
#include "tools/commands/prediction.h"

namespace shardplan {

// What is measured and predicted of one rank, bytes.
enum class Quantity {
  kPeakAllocated,  // of all steps
  kFirstStep,
  kSteady,
  kPeakReserved,
  kDeviceUsed,
  kAfterInit,
  kBetweenSteps,
};
inline constexpr std::int64_t kNumQuantities = 7;
inline constexpr std::array<NamedValue<Quantity>, kNumQuantities> kQuantities = {{
    {.value = Quantity::kPeakAllocated, .name = "peak_allocated"},
    {.value = Quantity::kFirstStep, .name = "peak_allocated_first_step"},
    {.value = Quantity::kSteady, .name = "peak_allocated_steady"},
    {.value = Quantity::kPeakReserved, .name = "peak_reserved"},
    {.value = Quantity::kDeviceUsed, .name = "device_used"},
    {.value = Quantity::kAfterInit, .name = "allocated_after_init"},
    {.value = Quantity::kBetweenSteps, .name = "allocated_between_steps"},
}};
constexpr const auto& names_of(Quantity) {
  return kQuantities;
}

struct BytesPair {
  std::int64_t measured = 0;
  std::int64_t predicted = 0;

  double error() const {
    return static_cast<double>(predicted - measured) / static_cast<double>(measured);
  }
};
using BytesPairs = std::array<std::optional<BytesPair>, kNumQuantities>;  // absent: not measured

// A measured figure that does not mean what its name says; it is reported, not compared.
struct NotCompared {
  std::string_view framework;
  Quantity quantity;
  std::string_view reason;
};
inline constexpr std::array<NotCompared, 1> kNotCompared = {{
    {.framework = "torchtitan",
     .quantity = Quantity::kFirstStep,
     .reason = "torchtitan resets PyTorch's peak when it logs step 1 (components/metrics.py, "
               "MetricsProcessor.log), so the figure is what was allocated after it"},
}};

struct RankPairs {
  MeasuredRank rank;
  BytesPairs pairs;
};

// One measured line and what is predicted for it.
struct AccuracyCase {
  std::string set;  // the file's name without folder and suffix
  std::string id;
  std::string framework;
  RunStatus measured_status = RunStatus::kOk;
  PredictedStatus status = PredictedStatus::kError;
  std::string reason;                 // why not "fits", or why there is no prediction
  std::vector<std::string> features;  // also of a plan that is refused, as far as it was read
  std::vector<RankPairs> ranks;       // none without a prediction
  BytesPairs worst;                   // largest predicted against largest measured of these ranks
  std::vector<const NotCompared*> not_compared;  // figures that this line has
  std::optional<double> measured_step_s;         // median
  std::optional<double> predicted_step_s;
  // What the paper's formula (profile fujii2024) allocates; absent where it does not apply.
  std::optional<std::int64_t> paper_allocated_bytes;

  bool is_predicted() const { return predicted_step_s.has_value(); }
};

enum class Scope { kWorstRank, kEveryRank };
inline constexpr std::array<NamedValue<Scope>, 2> kScopes = {{
    {.value = Scope::kWorstRank, .name = "worst_rank"},
    {.value = Scope::kEveryRank, .name = "every_rank"},
}};
constexpr const auto& names_of(Scope) {
  return kScopes;
}

// Shorter steps rest on how fast the host launches kernels, which differs between machines.
inline constexpr double kLongStep = 0.3;

inline constexpr std::array<double, 7> kCapacityFactors = {0.9, 0.95, 1, 1.02, 1.1, 1.3, 1.6};

struct AccuracyReport {
  std::vector<AccuracyCase> cases;  // measured ones, in the order of the files
  std::int64_t unmeasured = 0;      // lines without `measured`
  std::int64_t unreadable = 0;
};
// Bad lines are cases with status error; they do not end it. InputError: a file cannot be read.
AccuracyReport accuracy_report(const std::vector<std::string>& files, const Library& library);

ExitCode run_accuracy(const Arguments& arguments);

}  // namespace shardplan
