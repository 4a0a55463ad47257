// Whether predicted speeds choose the layouts that measurements choose: the figures by hand on
// small groups, and over all published layouts against tests/tools/accuracy/layout_bounds.csv.
// After an intended change: SHARDPLAN_UPDATE_BOUNDS=1 build/accuracy_tests, then read the diff:
// what grew is worse.
#include "tools/accuracy/layouts.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/tools/accuracy/bounds.h"

namespace shardplan {
namespace {

const std::string kBounds =
    std::string(SHARDPLAN_SOURCE_DIR) + "/tests/tools/accuracy/layout_bounds.csv";

LayoutRun run(const char* id, std::int64_t tp, double measured, double predicted) {
  Plan plan;
  plan.tp = tp;
  return {.id = id, .plan = plan, .measured = measured, .predicted = predicted};
}

LayoutReport published() {
  const std::string folder = std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/layouts/";
  return layout_report(
      {folder + "ultrascale_playbook.jsonl", folder + "vtrain.jsonl", folder + "bloom.jsonl"},
      Library());
}

double rounded_up(double share) {
  return std::ceil(share * 1e5 - 1e-6) / 1e3;  // percent
}

// Every figure is one where less is better.
Figures figures_of(const LayoutReport& report) {
  Figures figures;
  for (const LayoutGroup& group : report.groups) {
    const Agreement agreement = agreement_of(group);
    const std::string name =
        group.set + "; " + group.model + "; " + std::to_string(group.num_gpus) + " GPUs; ";
    figures[name + "top-1 regret %"] = rounded_up(agreement.top_1_regret);
    figures[name + "best-of-5 regret %"] = rounded_up(agreement.best_of_5_regret);
    figures[name + "100 (1 - Spearman)"] = rounded_up(1 - agreement.rank_correlation);
  }
  const RegretSummary summary = regret_summary(report);
  figures["all; median top-1 regret %"] = rounded_up(summary.median_top_1);
  figures["all; p90 top-1 regret %"] = rounded_up(summary.p90_top_1);
  figures["all; median best-of-5 regret %"] = rounded_up(summary.median_best_of_5);
  figures["all; 100 (1 - median Spearman)"] = rounded_up(1 - summary.median_rank_correlation);
  figures["all; refused"] = static_cast<double>(report.refused);
  return figures;
}

}  // namespace

TEST_CASE("regret is the share of the best measured speed that a choice loses") {
  const LayoutGroup group = {
      .set = "s",
      .model = "m",
      .num_gpus = 8,
      .runs = {run("a", 1, 80, 50), run("b", 2, 100, 45), run("c", 1, 60, 40), run("d", 4, 40, 30),
               run("e", 8, 30, 20), run("f", 8, 200, 10)}};
  const Agreement agreement = agreement_of(group);
  CHECK(agreement.chosen == "a");
  CHECK(agreement.best == "f");
  CHECK(agreement.top_1_regret == doctest::Approx(0.6));         // 80 of 200
  CHECK(agreement.best_of_5_regret == doctest::Approx(0.5));     // b, 100 of 200
  CHECK(agreement.smallest_tp_regret == doctest::Approx(0.65));  // a and c: 70 of 200
  // Places measured 3 4 2 1 0 5, predicted 5 4 3 2 1 0: squares of differences sum to 32.
  CHECK(agreement.rank_correlation == doctest::Approx(1 - 6.0 * 32 / (6 * 35)));
}

TEST_CASE("groups of fewer than six layouts are shown and not summed up") {
  LayoutGroup group = {.set = "s", .model = "m", .num_gpus = 8, .runs = {}};
  for (int i = 0; i < 5; ++i) { group.runs.push_back(run("x", 1, 10 + i, 10 + i)); }
  LayoutReport report;
  report.groups.push_back(group);
  CHECK(regret_summary(report).groups == 0);
  report.groups.front().runs.push_back(run("y", 1, 20, 1));
  CHECK(regret_summary(report).groups == 1);
  CHECK(regret_summary(report).median_top_1 == doctest::Approx(0.3));  // 14 of 20
}

TEST_CASE("only plans of one framework, sequence and batch answer one question") {
  LayoutGroup group = {.set = "s", .model = "m", .num_gpus = 8, .runs = {}};
  const auto add = [&](const char* id, double measured, double predicted, std::int64_t batch) {
    group.runs.push_back(run(id, 1, measured, predicted));
    group.runs.back().global_batch = batch;
  };
  add("a", 100, 90, 16);
  add("b", 99, 95, 16);
  add("c", 300, 20, 32);
  add("d", 200, 21, 32);
  add("e", 900, 99, 64);  // alone
  const std::vector<LayoutGroup> questions = questions_of({group});
  REQUIRE(questions.size() == 2);
  CHECK(agreement_of(questions[0]).chosen == "b");
  const ChoiceSummary summary = choice_summary(questions);
  CHECK(summary.runs == 4);
  CHECK(summary.within_2_percent == 1);  // b for a loses 1 %, d for c a third
  CHECK(summary.worst == doctest::Approx(1.0 / 3));
  CHECK(summary.mean == doctest::Approx((0.01 + 1.0 / 3) / 2));
}

TEST_CASE("choices among the published layouts are at least as good as recorded") {
  const LayoutReport report = published();
  check_against_bounds(figures_of(report), kBounds, ';');
}

TEST_CASE("every published layout stands in a group or among the refused") {
  const LayoutReport report = published();
  std::int64_t runs = report.refused;
  for (const LayoutGroup& group : report.groups) { runs += std::ssize(group.runs); }
  CHECK(runs == 1043 + 68 + 65);
  CHECK(report.refused == 0);
}

}  // namespace shardplan
