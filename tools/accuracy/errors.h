// What many runs say together: errors, capacity tests, step times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/accuracy/accuracy.h"

namespace shardplan {

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

struct TimeErrors {
  ErrorSummary errors;
  double mean = 0;              // of the errors' size
  double rank_correlation = 0;  // Spearman's, of step times
};
// Of runs whose measured step takes at least `least_s`; nothing where there are none.
std::optional<TimeErrors> time_errors(const std::vector<const AccuracyCase*>& cases,
                                      double least_s = 0);

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

std::vector<CapacityTest> capacity_tests(const std::vector<const AccuracyCase*>& cases);

// Every (set, framework) in order of appearance; then all of a set, then all sets, where these add
// something.
std::vector<CaseGroup> groups_of(const AccuracyReport& report);

}  // namespace shardplan
