#include "tools/report/accuracy.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/accuracy/accuracy.h"
#include "tools/accuracy/errors.h"
#include "tools/report/table.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string group_name(const CaseGroup& group) {
  return group.set + ", " + (group.framework == "all" ? "all frameworks" : group.framework);
}

std::vector<Cell> error_cells(const ErrorSummary& errors) {
  return {errors.count, fixed(errors.median * 100, 3) + " %", fixed(errors.p95 * 100, 2) + " %",
          signed_percent(errors.over), signed_percent(errors.under)};
}

std::string group_table(const CaseGroup& group) {
  Table table = {.columns = {"rank", "quantity", "values", "median", "p95", "over", "under",
                             "largest under-prediction"}};
  for (const QuantityErrors& row : errors_of(group.cases)) {
    std::vector<Cell> cells = {std::string(row.scope == Scope::kWorstRank ? "worst" : "every"),
                               std::string(name_of(row.quantity))};
    for (Cell& cell : error_cells(row.errors)) { cells.push_back(std::move(cell)); }
    cells.emplace_back(row.errors.under_id);
    table.rows.push_back(std::move(cells));
  }
  return table_text(table);
}

const ErrorSummary* worst_rank_errors(const FeatureErrors& feature, Quantity quantity) {
  const auto found = std::ranges::find_if(feature.errors, [quantity](const QuantityErrors& row) {
    return row.scope == Scope::kWorstRank && row.quantity == quantity;
  });
  return found == feature.errors.end() ? nullptr : &found->errors;
}

// Beside the peak: what the driver sees, or where no run measured it what stays between steps.
Quantity second_quantity(const CaseGroup& group) {
  const bool has_used = std::ranges::any_of(group.cases, [](const AccuracyCase* run) {
    return run->worst[static_cast<std::size_t>(Quantity::kDeviceUsed)].has_value();
  });
  return has_used ? Quantity::kDeviceUsed : Quantity::kBetweenSteps;
}

// Only what decides: peak allocated of the worst rank, and one more quantity beside it.
std::string feature_table(const CaseGroup& group) {
  const Quantity second = second_quantity(group);
  const std::string second_name(name_of(second));
  Table table = {.columns = {"feature", "predicted", "not", "median", "p95", "over", "under",
                             second_name + " median", "p95", "under"}};
  for (const FeatureErrors& feature : errors_by_feature(group)) {
    std::vector<Cell> cells = {feature.feature, feature.predicted, feature.refused};
    for (const Quantity quantity : {Quantity::kPeakAllocated, second}) {
      const ErrorSummary* errors = worst_rank_errors(feature, quantity);
      std::vector<Cell> some = errors != nullptr ? error_cells(*errors) : std::vector<Cell>(5);
      some.erase(some.begin());
      if (quantity == second) {
        some.erase(some.begin() + 2);
      }
      for (Cell& cell : some) { cells.push_back(std::move(cell)); }
    }
    table.rows.push_back(std::move(cells));
  }
  return table.rows.empty() ? ""
                            : "by feature, worst rank, peak_allocated and " + second_name + "\n" +
                                  table_text(table);
}

std::string count_of(std::int64_t part, std::int64_t whole) {
  const double share = whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
  return grouped(part) + " of " + grouped(whole) + " (" + fixed(share * 100, 1) + " %)";
}

std::string capacity_table(const CaseGroup& group) {
  const std::vector<CapacityTest> tests = capacity_tests(group.cases);
  if (tests.empty()) {
    return "";
  }
  Table table = {.columns = {"rule", "false fits", "of these over 1.1x", "refused from 1 to 1.1x",
                             "refused from 1.1x on", "no answer"}};
  for (const CapacityTest& test : tests) {
    table.rows.push_back({test.rule, count_of(test.false_fits, test.trials_below),
                          test.false_fits_by_10, count_of(test.near_refusals, test.trials_near),
                          count_of(test.false_refusals, test.trials_above), test.unanswered});
  }
  return "verdicts at 0.9, 0.95, 1, 1.02, 1.1, 1.3 and 1.6 x the measured device_used\n" +
         table_text(table);
}

std::string long_steps_line(const CaseGroup& group) {
  const std::optional<TimeErrors> times = time_errors(group.cases, kLongStep);
  return !times
             ? ""
             : "steps of " + fixed(kLongStep, 1) + " s and more: " + grouped(times->errors.count) +
                   ", mean error " + fixed(times->mean * 100, 1) + " %, largest " +
                   fixed(std::max(times->errors.over, -times->errors.under) * 100, 1) +
                   " %, rank correlation " + fixed(times->rank_correlation, 3) + "\n";
}

std::string time_line(const CaseGroup& group) {
  const std::optional<TimeErrors> times = time_errors(group.cases);
  if (!times) {
    return "";
  }
  return "step time of " + grouped(times->errors.count) + " runs: median error " +
         fixed(times->errors.median * 100, 1) + " %, p95 " + fixed(times->errors.p95 * 100, 1) +
         " %, " + signed_percent(times->errors.under) + " to " +
         signed_percent(times->errors.over) + ", rank correlation " +
         fixed(times->rank_correlation, 3) + "\n" + long_steps_line(group);
}

double worst_size(const AccuracyCase& run) {
  const std::optional<BytesPair>& peak =
      run.worst[static_cast<std::size_t>(Quantity::kPeakAllocated)];
  const std::optional<BytesPair>& used = run.worst[static_cast<std::size_t>(Quantity::kDeviceUsed)];
  return std::max(peak ? std::fabs(peak->error()) : 0, used ? std::fabs(used->error()) : 0);
}

std::string worst_table(const AccuracyReport& report) {
  std::vector<const AccuracyCase*> runs;
  for (const AccuracyCase& run : report.cases) {
    if (run.is_predicted()) {
      runs.push_back(&run);
    }
  }
  std::ranges::stable_sort(runs, std::ranges::greater{},
                           [](const AccuracyCase* run) { return worst_size(*run); });
  constexpr std::size_t kShown = 10;
  runs.resize(std::min(runs.size(), kShown));
  Table table = {.columns = {"peak_allocated", "peak_reserved", "device_used", "framework", "id"}};
  for (const AccuracyCase* run : runs) {
    std::vector<Cell> cells;
    for (const Quantity quantity :
         {Quantity::kPeakAllocated, Quantity::kPeakReserved, Quantity::kDeviceUsed}) {
      const std::optional<BytesPair>& pair = run->worst[static_cast<std::size_t>(quantity)];
      cells.emplace_back(pair ? signed_percent(pair->error()) : "-");
    }
    cells.emplace_back(run->framework);
    cells.emplace_back(run->id);
    table.rows.push_back(std::move(cells));
  }
  return table.rows.empty() ? "" : "\nWorst runs (worst rank)\n" + table_text(table);
}

// By reason, the most frequent first, every case by its name.
std::string refused_lines(const AccuracyReport& report) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  std::int64_t refused = 0;
  for (const AccuracyCase& run : report.cases) {
    if (run.is_predicted()) {
      continue;
    }
    ++refused;
    const std::string status = std::string(name_of(run.status)) + ": ";
    const std::string reason =
        (run.reason.starts_with(status) ? "" : status) + one_line(run.reason);
    auto found = std::ranges::find_if(
        by_reason, [&reason](const auto& entry) { return entry.first == reason; });
    if (found == by_reason.end()) {
      by_reason.push_back({reason, {}});
      found = std::prev(by_reason.end());
    }
    found->second.push_back(one_line(run.id));
  }
  if (refused == 0) {
    return "";
  }
  std::ranges::stable_sort(by_reason, std::ranges::greater{},
                           [](const auto& entry) { return entry.second.size(); });
  std::string text = "\nNot predicted: " + grouped(refused) + "\n";
  for (const auto& [reason, ids] : by_reason) {
    text += "  " + reason + ": " + grouped(std::ssize(ids)) + "\n";
    for (const std::string& id : ids) { text += "    " + id + "\n"; }
  }
  return text;
}

std::int64_t runs_with(const AccuracyReport& report, const NotCompared& entry) {
  return std::ranges::count_if(report.cases, [&entry](const AccuracyCase& run) {
    return std::ranges::find(run.not_compared, &entry) != run.not_compared.end();
  });
}

std::string not_compared_lines(const AccuracyReport& report) {
  std::string text;
  for (const NotCompared& entry : kNotCompared) {
    if (const std::int64_t runs = runs_with(report, entry); runs > 0) {
      text += "  " + std::string(name_of(entry.quantity)) + " of " + std::string(entry.framework) +
              ", " + grouped(runs) + " runs: " + std::string(entry.reason) + "\n";
    }
  }
  return text.empty() ? "" : "\nNot compared\n" + text;
}

// What was said of runs at their own card.
std::string outcome_table(const AccuracyReport& report) {
  Table table = {.columns = {"measured", "predicted", "runs"}};
  for (const auto& [measured, measured_name] : kRunStatuses) {
    for (const auto& [status, status_name] : kPredictedStatuses) {
      const auto runs = std::ranges::count_if(
          report.cases, [&, measured = measured, status = status](const AccuracyCase& run) {
            return run.status != PredictedStatus::kError && run.measured_status == measured &&
                   run.status == status;
          });
      if (runs > 0) {
        table.rows.push_back({std::string(measured_name), std::string(status_name), runs});
      }
    }
  }
  return table.rows.empty() ? "" : "\nVerdicts at each run's own card\n" + table_text(table);
}

Json json_of(const ErrorSummary& errors) {
  return {{"values", errors.count},     {"median", errors.median},   {"p95", errors.p95},
          {"over", errors.over},        {"over_id", errors.over_id}, {"under", errors.under},
          {"under_id", errors.under_id}};
}

Json json_of(const std::vector<QuantityErrors>& rows) {
  Json json = Json::object();
  for (const QuantityErrors& row : rows) {
    json[std::string(name_of(row.scope))][std::string(name_of(row.quantity))] = json_of(row.errors);
  }
  return json;
}

Json json_of(const CapacityTest& test) {
  return {{"rule", test.rule},
          {"cases", test.cases},
          {"unanswered", test.unanswered},
          {"trials_below", test.trials_below},
          {"false_fits", test.false_fits},
          {"false_fits_over_1_1", test.false_fits_by_10},
          {"trials_near", test.trials_near},
          {"near_refusals", test.near_refusals},
          {"trials_above", test.trials_above},
          {"false_refusals", test.false_refusals}};
}

Json json_of(const CaseGroup& group) {
  Json json = {{"set", group.set},
               {"framework", group.framework},
               {"predicted", std::ssize(group.cases)},
               {"refused", std::ssize(group.refused)},
               {"errors", json_of(errors_of(group.cases))},
               {"capacity", Json::array()},
               {"features", Json::array()}};
  for (const CapacityTest& test : capacity_tests(group.cases)) {
    json["capacity"].push_back(json_of(test));
  }
  for (const auto& [name, least_s] :
       {std::pair{"step_time", 0.0}, std::pair{"step_time_long_steps", kLongStep}}) {
    if (const std::optional<TimeErrors> times = time_errors(group.cases, least_s)) {
      json[name] = json_of(times->errors);
      json[name]["mean"] = times->mean;
      json[name]["rank_correlation"] = times->rank_correlation;
    }
  }
  for (const FeatureErrors& feature : errors_by_feature(group)) {
    json["features"].push_back({{"feature", feature.feature},
                                {"predicted", feature.predicted},
                                {"refused", feature.refused},
                                {"errors", json_of(feature.errors)}});
  }
  return json;
}

Json json_of(const BytesPairs& pairs) {
  Json json = Json::object();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i]) {
      json[std::string(kQuantities[i].name)] = {{"measured", pairs[i]->measured},
                                                {"predicted", pairs[i]->predicted}};
    }
  }
  return json;
}

Json json_of(const AccuracyCase& run) {
  Json json = {{"set", run.set},
               {"id", run.id},
               {"framework", run.framework},
               {"measured_status", name_of(run.measured_status)},
               {"status", name_of(run.status)},
               {"reason", run.reason},
               {"features", run.features}};
  if (!run.is_predicted()) {
    return json;
  }
  json["worst_rank"] = json_of(run.worst);
  if (run.measured_step_s) {
    json["step_time_s"] = {{"measured", *run.measured_step_s},
                           {"predicted", *run.predicted_step_s}};
  }
  return json;
}

}  // namespace

std::string accuracy_text(const AccuracyReport& report) {
  const std::int64_t lines = std::ssize(report.cases) + report.unmeasured;
  const std::int64_t predicted = std::ranges::count_if(report.cases, &AccuracyCase::is_predicted);
  std::string text = grouped(lines) + " case lines, " + grouped(std::ssize(report.cases)) +
                     " with measurements, " + grouped(predicted) + " predicted\n" +
                     "errors are (predicted - measured) / measured; median and p95 of their size\n";
  std::vector<CaseGroup> groups = groups_of(report);
  // The totals first: all files and frameworks, then all files of each framework.
  std::ranges::stable_sort(groups, {}, [](const CaseGroup& group) {
    return group.set != "all" ? 2 : group.framework != "all" ? 1 : 0;
  });
  for (const CaseGroup& group : groups) {
    text += std::string("\n") + group_name(group) + ": " + grouped(std::ssize(group.cases)) +
            " predicted, " + grouped(std::ssize(group.refused)) + " not\n";
    if (!group.cases.empty()) {
      text += group_table(group) + feature_table(group) + capacity_table(group) + time_line(group);
    }
  }
  return text + outcome_table(report) + worst_table(report) + not_compared_lines(report) +
         refused_lines(report);
}

std::string accuracy_json(const AccuracyReport& report) {
  Json json = {{"command", "accuracy"},           {"unmeasured", report.unmeasured},
               {"unreadable", report.unreadable}, {"not_compared", Json::array()},
               {"groups", Json::array()},         {"cases", Json::array()}};
  for (const NotCompared& entry : kNotCompared) {
    if (const std::int64_t runs = runs_with(report, entry); runs > 0) {
      json["not_compared"].push_back({{"framework", entry.framework},
                                      {"quantity", name_of(entry.quantity)},
                                      {"runs", runs},
                                      {"reason", entry.reason}});
    }
  }
  for (const CaseGroup& group : groups_of(report)) { json["groups"].push_back(json_of(group)); }
  for (const AccuracyCase& run : report.cases) { json["cases"].push_back(json_of(run)); }
  return one_line_of(json);
}

}  // namespace shardplan
