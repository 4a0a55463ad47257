// Predictions held against measurements: pairs of bytes, errors, and what they say about verdicts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/case_line.h"
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

// The case must carry `measured`. Its id stays even where the line cannot be predicted.
AccuracyCase accuracy_case(const Case& question, const std::string& set, const Library& library);

// Of the shares |predicted - measured| / measured: median and 95th percentile (nearest rank); and
// the largest on either side, 0 if there is none.
struct ErrorSummary {
  std::int64_t count = 0;
  double median = 0;
  double p95 = 0;
  double over = 0;   // >= 0
  double under = 0;  // <= 0
  std::string over_id;
  std::string under_id;
};

enum class Scope { kWorstRank, kEveryRank };
inline constexpr std::array<NamedValue<Scope>, 2> kScopes = {{
    {.value = Scope::kWorstRank, .name = "worst_rank"},
    {.value = Scope::kEveryRank, .name = "every_rank"},
}};
constexpr const auto& names_of(Scope) {
  return kScopes;
}

// Cases that are summed up together. "all" stands for every set or framework.
struct CaseGroup {
  std::string set;
  std::string framework;
  std::vector<const AccuracyCase*> cases;    // predicted ones
  std::vector<const AccuracyCase*> refused;  // invalid, unsupported or unreadable
};

struct QuantityErrors {
  Quantity quantity = Quantity::kPeakAllocated;
  Scope scope = Scope::kWorstRank;
  ErrorSummary errors;
};

// Quantities that no case of the list has measured are left out.
std::vector<QuantityErrors> errors_of(const std::vector<const AccuracyCase*>& cases);

struct FeatureErrors {
  std::string feature;
  std::int64_t predicted = 0;
  std::int64_t refused = 0;
  std::vector<QuantityErrors> errors;  // of the predicted cases
};
// One entry per feature that some but not all of the group's cases have, the most often predicted
// first; with several frameworks, these are features as well.
std::vector<FeatureErrors> errors_by_feature(const CaseGroup& group);

// Of at least one value; of an even number the mean of the two in the middle.
double median_of(std::vector<double> values);
// Of at least one value: the least that is no smaller than this share of them.
double nearest_rank(std::vector<double> values, double share);

// Spearman's: of the places that the values take; equal values share the mean of theirs.
double rank_correlation(const std::vector<double>& x, const std::vector<double>& y);

// Seconds of a step: the median of the steps measured, or what the throughput says.
std::optional<double> measured_step_s(const Measurement& measured, const Job& job);

struct TimeErrors {
  ErrorSummary errors;
  double mean = 0;              // of the errors' size
  double rank_correlation = 0;  // Spearman's, of step times
};
// Of runs whose measured step takes at least `least_s`; nothing where there are none.
std::optional<TimeErrors> time_errors(const std::vector<const AccuracyCase*>& cases,
                                      double least_s = 0);

// Shorter steps rest on how fast the host launches kernels, which differs between machines.
inline constexpr double kLongStep = 0.3;

// A rule that says fits or does not fit, tried at capacities around what each run really used.
struct CapacityTest {
  std::string rule;
  std::int64_t cases = 0;
  std::int64_t unanswered = 0;        // the rule's formula does not apply
  std::int64_t trials_below = 0;      // capacity below what was used
  std::int64_t false_fits = 0;        // of these, said to fit
  std::int64_t false_fits_by_10 = 0;  // said to fit although more than 1.1 x the capacity was used
  std::int64_t trials_near = 0;       // capacity from 1 to below 1.1 x
  std::int64_t near_refusals = 0;     // of these, said not to fit
  std::int64_t trials_above = 0;      // from 1.1 x on
  std::int64_t false_refusals = 0;    // of these, said not to fit
};
inline constexpr std::array<double, 7> kCapacityFactors = {0.9, 0.95, 1, 1.02, 1.1, 1.3, 1.6};
std::vector<CapacityTest> capacity_tests(const std::vector<const AccuracyCase*>& cases);

struct AccuracyReport {
  std::vector<AccuracyCase> cases;  // measured ones, in the order of the files
  std::int64_t unmeasured = 0;      // lines without `measured`
  std::int64_t unreadable = 0;
};
// Bad lines are cases with status error; they do not end it. InputError: a file cannot be read.
AccuracyReport accuracy_report(const std::vector<std::string>& files, const Library& library);

// Every (set, framework) in order of appearance; then all of a set, then all sets, where these add
// something.
std::vector<CaseGroup> groups_of(const AccuracyReport& report);

std::string accuracy_text(const AccuracyReport& report);
std::string accuracy_csv(const AccuracyReport& report);  // one row per rank
std::string accuracy_json(const AccuracyReport& report);

}  // namespace shardplan
