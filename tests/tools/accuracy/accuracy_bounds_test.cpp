// Accuracy over all measurements shipped under data/ may only get better: every figure against
// tests/tools/accuracy/accuracy_bounds.csv. After an intended change:
// SHARDPLAN_UPDATE_BOUNDS=1 build/accuracy_tests, then read the diff: what grew is worse.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/tools/accuracy/bounds.h"
#include "tools/accuracy/accuracy.h"
#include "tools/accuracy/errors.h"

namespace shardplan {
namespace {

const std::string kBounds =
    std::string(SHARDPLAN_SOURCE_DIR) + "/tests/tools/accuracy/accuracy_bounds.csv";

// data/measured/*.jsonl and data/published/*.jsonl, as README.md has them.
std::vector<std::string> case_files() {
  std::vector<std::string> files;
  for (const char* folder : {"/data/measured", "/data/published"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(SHARDPLAN_SOURCE_DIR) + folder)) {
      if (entry.path().extension() == ".jsonl") {
        files.push_back(entry.path());
      }
    }
  }
  std::ranges::sort(files);
  return files;
}

// In its unit, three decimals.
double rounded_up(double value) {
  return std::ceil(value * 1000 - 1e-6) / 1000;
}

void add_errors(Figures& figures, const std::string& name, const ErrorSummary& errors) {
  figures[name + ",median %"] = rounded_up(errors.median * 100);
  figures[name + ",p95 %"] = rounded_up(errors.p95 * 100);
  figures[name + ",over %"] = rounded_up(errors.over * 100);
  figures[name + ",under %"] = rounded_up(-errors.under * 100);
}

Figures figures_of(const AccuracyReport& report) {
  Figures figures;
  figures["all,all,unreadable lines"] = static_cast<double>(report.unreadable);
  for (const CaseGroup& group : groups_of(report)) {
    if (group.framework == "all") {
      continue;  // moves when a framework joins
    }
    const std::string name = group.set + "," + group.framework + ",";
    figures[name + "not predicted"] = static_cast<double>(group.refused.size());
    for (const QuantityErrors& row : errors_of(group.cases)) {
      add_errors(figures,
                 name + std::string(name_of(row.scope)) + " " + std::string(name_of(row.quantity)),
                 row.errors);
    }
    if (const std::optional<TimeErrors> times = time_errors(group.cases)) {
      add_errors(figures, name + "step time", times->errors);
      figures[name + "step time,1 - rank correlation"] = rounded_up(1 - times->rank_correlation);
    }
    if (const std::optional<TimeErrors> times = time_errors(group.cases, kLongStep)) {
      figures[name + "step time of long steps,mean %"] = rounded_up(times->mean * 100);
    }
    for (const CapacityTest& test : capacity_tests(group.cases)) {
      if (test.rule.starts_with("device_used")) {
        figures[name + "capacity,false fits"] = static_cast<double>(test.false_fits);
        figures[name + "capacity,false fits over 1.1x"] =
            static_cast<double>(test.false_fits_by_10);
        figures[name + "capacity,refused from 1.1x on"] = static_cast<double>(test.false_refusals);
      }
    }
  }
  return figures;
}

}  // namespace

TEST_CASE("predictions of every shipped measurement are at least as good as recorded") {
  check_against_bounds(figures_of(accuracy_report(case_files(), Library())), kBounds, ',');
}

TEST_CASE("every shipped measurement is read and answered, none is dropped") {
  const AccuracyReport report = accuracy_report(case_files(), Library());
  CHECK(report.unreadable == 0);
  CHECK(report.unmeasured == 0);
  std::int64_t counted = 0;
  for (const CaseGroup& group : groups_of(report)) {
    if (group.set != "all" && group.framework != "all") {
      counted += std::ssize(group.cases) + std::ssize(group.refused);
    }
  }
  CHECK(counted == std::ssize(report.cases));
  CHECK(counted >= 497);
}

}  // namespace shardplan
