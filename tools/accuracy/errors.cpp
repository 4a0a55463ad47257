#include "tools/accuracy/errors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/accuracy/accuracy.h"

namespace shardplan {
namespace {

using Cases = std::vector<const AccuracyCase*>;

struct NamedError {
  double error = 0;
  const std::string* id = nullptr;
};

ErrorSummary summary_of(const std::vector<NamedError>& errors) {
  ErrorSummary summary = {.count = std::ssize(errors), .over_id = {}, .under_id = {}};
  if (errors.empty()) {
    return summary;
  }
  std::vector<double> sizes;
  for (const NamedError& named : errors) {
    sizes.push_back(std::fabs(named.error));
    if (named.error > summary.over) {
      summary.over = named.error;
      summary.over_id = *named.id;
    }
    if (named.error < summary.under) {
      summary.under = named.error;
      summary.under_id = *named.id;
    }
  }
  summary.median = median_of(sizes);
  summary.p95 = nearest_rank(sizes, 0.95);
  return summary;
}

std::vector<NamedError> errors_in(const Cases& cases, std::size_t quantity, Scope scope) {
  std::vector<NamedError> errors;
  for (const AccuracyCase* run : cases) {
    if (scope == Scope::kWorstRank && run->worst[quantity]) {
      errors.push_back({.error = run->worst[quantity]->error(), .id = &run->id});
    }
    if (scope == Scope::kEveryRank) {
      for (const RankPairs& rank : run->ranks) {
        if (rank.pairs[quantity]) {
          errors.push_back({.error = rank.pairs[quantity]->error(), .id = &run->id});
        }
      }
    }
  }
  return errors;
}

// Places from 0 on; equal values share the mean of theirs.
std::vector<double> places_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> places(values.size());
  for (std::size_t start = 0; start < order.size();) {
    std::size_t end = start;
    while (end < order.size() && values[order[end]] == values[order[start]]) { ++end; }
    for (std::size_t i = start; i < end; ++i) {
      places[order[i]] = static_cast<double>(start + end - 1) / 2;
    }
    start = end;
  }
  return places;
}

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const double count = static_cast<double>(x.size());
  const double mean_x = std::reduce(x.begin(), x.end()) / count;
  const double mean_y = std::reduce(y.begin(), y.end()) / count;
  double xy = 0;
  double xx = 0;
  double yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// One rule tried at every capacity around what the run used.
void try_capacities(CapacityTest& test, std::int64_t used_bytes, std::int64_t predicted_bytes,
                    double threshold) {
  ++test.cases;
  for (const double factor : kCapacityFactors) {
    const double capacity = factor * static_cast<double>(used_bytes);
    const bool fits = static_cast<double>(predicted_bytes) <= threshold * capacity;
    if (factor < 1) {
      ++test.trials_below;
      test.false_fits += fits ? 1 : 0;
      test.false_fits_by_10 += fits && factor * 1.1 < 1 ? 1 : 0;
    } else if (factor < 1.1) {
      ++test.trials_near;
      test.near_refusals += fits ? 0 : 1;
    } else {
      ++test.trials_above;
      test.false_refusals += fits ? 0 : 1;
    }
  }
}

constexpr std::size_t index_of(Quantity quantity) {
  return static_cast<std::size_t>(quantity);
}

constexpr const char* kAll = "all";

std::vector<std::string> features_in(const CaseGroup& group, const AccuracyCase& run) {
  std::vector<std::string> features = run.features;
  if (group.framework == kAll) {
    features.push_back("framework " + run.framework);
  }
  return features;
}

}  // namespace

std::vector<QuantityErrors> errors_of(const Cases& cases) {
  std::vector<QuantityErrors> result;
  for (const auto& [scope, scope_name] : kScopes) {
    for (std::size_t i = 0; i < kQuantities.size(); ++i) {
      ErrorSummary errors = summary_of(errors_in(cases, i, scope));
      if (errors.count > 0) {
        result.push_back(
            {.quantity = kQuantities[i].value, .scope = scope, .errors = std::move(errors)});
      }
    }
  }
  return result;
}

std::vector<FeatureErrors> errors_by_feature(const CaseGroup& group) {
  struct Members {
    std::string feature;
    Cases predicted;
    std::int64_t refused = 0;
  };
  std::vector<Members> by_feature;
  const auto members_with = [&by_feature](const std::string& feature) -> Members& {
    const auto found = std::ranges::find(by_feature, feature, &Members::feature);
    if (found != by_feature.end()) {
      return *found;
    }
    return by_feature.emplace_back(Members{.feature = feature, .predicted = {}});
  };
  const std::size_t whole = group.cases.size() + group.refused.size();
  for (const AccuracyCase* run : group.cases) {
    for (const std::string& feature : features_in(group, *run)) {
      members_with(feature).predicted.push_back(run);
    }
  }
  for (const AccuracyCase* run : group.refused) {
    for (const std::string& feature : features_in(group, *run)) { ++members_with(feature).refused; }
  }
  std::erase_if(by_feature, [whole](const Members& members) {
    return members.predicted.size() + static_cast<std::size_t>(members.refused) == whole;
  });
  std::ranges::stable_sort(by_feature, std::ranges::greater{},
                           [](const Members& members) { return members.predicted.size(); });
  std::vector<FeatureErrors> result;
  for (const Members& members : by_feature) {
    result.push_back({.feature = members.feature,
                      .predicted = std::ssize(members.predicted),
                      .refused = members.refused,
                      .errors = errors_of(members.predicted)});
  }
  return result;
}

double nearest_rank(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rank_correlation(const std::vector<double>& x, const std::vector<double>& y) {
  return correlation(places_of(x), places_of(y));
}

std::optional<TimeErrors> time_errors(const Cases& cases, double least_s) {
  std::vector<NamedError> errors;
  std::vector<double> measured;
  std::vector<double> predicted;
  for (const AccuracyCase* run : cases) {
    if (run->measured_step_s && run->predicted_step_s && *run->measured_step_s >= least_s) {
      measured.push_back(*run->measured_step_s);
      predicted.push_back(*run->predicted_step_s);
      errors.push_back(
          {.error = (predicted.back() - measured.back()) / measured.back(), .id = &run->id});
    }
  }
  if (errors.empty()) {
    return std::nullopt;
  }
  double sum = 0;
  for (const NamedError& named : errors) { sum += std::fabs(named.error); }
  return TimeErrors{.errors = summary_of(errors),
                    .mean = sum / static_cast<double>(errors.size()),
                    .rank_correlation = shardplan::rank_correlation(measured, predicted)};
}

std::vector<CapacityTest> capacity_tests(const Cases& cases) {
  CapacityTest ours = {.rule = "device_used <= capacity"};
  CapacityTest share = {.rule = "allocated <= 80 % of capacity"};
  CapacityTest paper = {.rule = "fujii2024's formula <= 80 % of capacity"};
  constexpr double kPaperShare = 0.8;  // arXiv 2411.06465, section 4
  for (const AccuracyCase* run : cases) {
    const std::optional<BytesPair>& used = run->worst[index_of(Quantity::kDeviceUsed)];
    if (!used) {
      continue;
    }
    try_capacities(ours, used->measured, used->predicted, 1);
    if (const auto& allocated = run->worst[index_of(Quantity::kPeakAllocated)]) {
      try_capacities(share, used->measured, allocated->predicted, kPaperShare);
    }
    if (run->paper_allocated_bytes) {
      try_capacities(paper, used->measured, *run->paper_allocated_bytes, kPaperShare);
    } else {
      ++paper.unanswered;
    }
  }
  if (ours.cases == 0) {
    return {};
  }
  return {ours, share, paper};
}

std::vector<CaseGroup> groups_of(const AccuracyReport& report) {
  std::vector<CaseGroup> groups;
  std::vector<CaseGroup> sets;
  CaseGroup all = {.set = kAll, .framework = kAll, .cases = {}, .refused = {}};
  const auto add = [](std::vector<CaseGroup>& to, const std::string& set,
                      const std::string& framework, const AccuracyCase& run) {
    auto found = std::ranges::find_if(to, [&](const CaseGroup& group) {
      return group.set == set && group.framework == framework;
    });
    if (found == to.end()) {
      to.push_back({.set = set, .framework = framework, .cases = {}, .refused = {}});
      found = std::prev(to.end());
    }
    (run.is_predicted() ? found->cases : found->refused).push_back(&run);
  };
  for (const AccuracyCase& run : report.cases) {
    add(groups, run.set, run.framework, run);
    add(sets, run.set, kAll, run);
    (run.is_predicted() ? all.cases : all.refused).push_back(&run);
  }
  const auto is_predicted = [](const CaseGroup& group) { return !group.cases.empty(); };
  for (const CaseGroup& set : sets) {
    const auto members = std::ranges::count(groups, set.set, &CaseGroup::set);
    if (members > 1 && is_predicted(set)) {
      groups.push_back(set);
    }
  }
  if (std::ranges::count_if(sets, is_predicted) > 1) {
    groups.push_back(all);
  }
  return groups;
}

}  // namespace shardplan
