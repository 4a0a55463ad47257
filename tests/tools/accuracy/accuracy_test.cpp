// Errors counted by hand, and the command over lines that tests write.
#include "tools/accuracy/accuracy.h"
#include "tests/tools/run_program.h"
#include "tools/accuracy/errors.h"

#include <doctest/doctest.h>

#include <cmath>

namespace shardplan {
namespace {

constexpr std::size_t kPeak = static_cast<std::size_t>(Quantity::kPeakAllocated);
constexpr std::size_t kUsed = static_cast<std::size_t>(Quantity::kDeviceUsed);

AccuracyCase run_of(const std::string& id, std::int64_t measured, std::int64_t predicted) {
  AccuracyCase run;
  run.id = id;
  run.status = PredictedStatus::kFits;
  run.predicted_step_s = 1;
  run.worst[kPeak] = BytesPair{.measured = measured, .predicted = predicted};
  run.worst[kUsed] = run.worst[kPeak];
  return run;
}

std::vector<const AccuracyCase*> pointers(const std::vector<AccuracyCase>& runs) {
  std::vector<const AccuracyCase*> all;
  for (const AccuracyCase& run : runs) { all.push_back(&run); }
  return all;
}

CaseGroup group_of(const std::vector<AccuracyCase>& runs) {
  CaseGroup group;
  group.cases = pointers(runs);
  return group;
}

std::string measured_line(const std::string& id, const std::string& measured) {
  return R"({"schema": 1, "id": ")" + id +
         R"(", "framework": "megatron", "model": "llama3-8b", "cluster": "1x8-h200",)"
         R"( "training": {"sequence_length": 8192, "micro_batch": 1, "num_microbatches": 4},)"
         R"( "plan": {"tp": 2, "pp": 2, "dp": 2}, "measured": )" +
         measured + "}\n";
}

}  // namespace

TEST_CASE("errors are summed up by median, nearest-rank p95 and the largest on either side") {
  std::vector<AccuracyCase> runs;
  for (std::int64_t i = 1; i <= 20; ++i) {  // +1 % .. +20 %
    runs.push_back(run_of("over " + std::to_string(i), 1000, 1000 + 10 * i));
  }
  runs.push_back(run_of("under", 1000, 970));
  const QuantityErrors peak = errors_of(pointers(runs)).front();
  CHECK(peak.quantity == Quantity::kPeakAllocated);
  CHECK(peak.scope == Scope::kWorstRank);
  CHECK(peak.errors.count == 21);
  CHECK(peak.errors.median == doctest::Approx(0.10));  // the 11th of 1 2 3 3 4 ... 20
  CHECK(peak.errors.p95 == doctest::Approx(0.19));     // ceil(0.95 * 21) = the 20th
  CHECK(peak.errors.over == doctest::Approx(0.20));
  CHECK(peak.errors.over_id == "over 20");
  CHECK(peak.errors.under == doctest::Approx(-0.03));
  CHECK(peak.errors.under_id == "under");
}

TEST_CASE("a rule is tried at seven capacities around what the run used") {
  // Predicted 8 % too low: fits falsely at 0.95 x, not at 0.9 x. 12 % too high: refused up to 1.1
  // x.
  const std::vector<AccuracyCase> runs = {run_of("low", 1000, 920), run_of("high", 1000, 1120)};
  const CapacityTest ours = capacity_tests(pointers(runs)).front();
  CHECK(ours.cases == 2);
  CHECK(ours.trials_below == 4);
  CHECK(ours.false_fits == 1);
  CHECK(ours.false_fits_by_10 == 0);
  CHECK(ours.trials_near == 4);
  CHECK(ours.near_refusals == 2);
  CHECK(ours.trials_above == 6);
  CHECK(ours.false_refusals == 1);
}

TEST_CASE("a false fit by a tenth is one where the run used a tenth more than there was") {
  const std::vector<AccuracyCase> runs = {run_of("low", 1000, 850)};
  const CapacityTest ours = capacity_tests(pointers(runs)).front();
  CHECK(ours.false_fits == 2);        // at 0.9 and at 0.95 of it
  CHECK(ours.false_fits_by_10 == 1);  // 1000 is 11 % more than 900
}

TEST_CASE("equal values share the mean of their places") {
  // Places 0 1.5 1.5 3 and 0 1 2 3 about their mean: products 4.5, squares 4.5 and 5.
  CHECK(rank_correlation({1, 2, 2, 3}, {1, 2, 3, 4}) == doctest::Approx(4.5 / std::sqrt(4.5 * 5)));
}

TEST_CASE("long steps are summed up by themselves, by the mean of their errors") {
  std::vector<AccuracyCase> runs(3);
  const std::array<double, 3> measured = {0.1, 0.3, 2};
  const std::array<double, 3> predicted = {0.01, 0.33, 1.6};
  std::vector<const AccuracyCase*> cases;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].measured_step_s = measured[i];
    runs[i].predicted_step_s = predicted[i];
    cases.push_back(&runs[i]);
  }
  const TimeErrors all = time_errors(cases).value();
  CHECK(all.errors.count == 3);
  CHECK(all.mean == doctest::Approx((0.9 + 0.1 + 0.2) / 3));
  const TimeErrors longer = time_errors(cases, kLongStep).value();
  CHECK(longer.errors.count == 2);
  CHECK(longer.mean == doctest::Approx(0.15));
  CHECK(longer.errors.under == doctest::Approx(-0.2));
  CHECK_FALSE(time_errors(cases, 3).has_value());
}

TEST_CASE("step times that keep their order correlate fully, reversed ones the other way") {
  std::vector<AccuracyCase> runs = {run_of("a", 1, 1), run_of("b", 1, 1), run_of("c", 1, 1)};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].measured_step_s = 1 + static_cast<double>(i);
    runs[i].predicted_step_s = 10 * *runs[i].measured_step_s * *runs[i].measured_step_s;
  }
  CHECK(time_errors(pointers(runs))->rank_correlation == doctest::Approx(1));
  std::swap(runs[0].predicted_step_s, runs[2].predicted_step_s);
  CHECK(time_errors(pointers(runs))->rank_correlation == doctest::Approx(-1));
}

TEST_CASE("features that all runs share say nothing and are left out") {
  std::vector<AccuracyCase> runs = {run_of("a", 100, 101), run_of("b", 100, 103)};
  runs[0].features = {"dense", "tp > 1"};
  runs[1].features = {"dense"};
  const std::vector<FeatureErrors> features = errors_by_feature(group_of(runs));
  REQUIRE(features.size() == 1);
  CHECK(features[0].feature == "tp > 1");
  CHECK(features[0].errors.front().errors.over == doctest::Approx(0.01));
}

TEST_CASE("a feature of refused runs only is a row with none predicted") {
  std::vector<AccuracyCase> runs = {run_of("a", 100, 101)};
  runs[0].features = {"dense"};
  std::vector<AccuracyCase> refused(2);
  refused[0].features = {"moe"};
  refused[1].features = {"dense"};
  CaseGroup group = group_of(runs);
  group.refused = pointers(refused);
  std::vector<FeatureErrors> features = errors_by_feature(group);
  REQUIRE(features.size() == 2);
  CHECK(features[0].feature == "dense");
  CHECK(features[0].predicted == 1);
  CHECK(features[0].refused == 1);
  CHECK(features[1].feature == "moe");
  CHECK(features[1].predicted == 0);
  CHECK(features[1].refused == 1);
  CHECK(features[1].errors.empty());

  runs[0].framework = "one";
  refused[0].framework = "other";
  refused[1].framework = "other";
  group.framework = "all";
  features = errors_by_feature(group);
  REQUIRE(features.size() == 4);
  CHECK(features[1].feature == "framework one");
  CHECK(features[1].predicted == 1);
}

TEST_CASE("every line with measurements is answered: predicted, refused by name, or unreadable") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/runs.jsonl";
  const std::string ranks = R"({"status": "ok", "ranks": [)"
                            R"({"rank": 0, "pp_rank": 0, "peak_allocated": 42890000000},)"
                            R"( {"rank": 7, "pp_rank": 1, "peak_allocated": 35360000000}]})";
  std::string other = measured_line("another framework", ranks);
  other.replace(other.find("\"megatron\""), 10, "\"no-such-thing\"");
  std::string invalid = measured_line("too many GPUs", ranks);
  invalid.replace(invalid.find("\"tp\": 2"), 7, "\"tp\": 3");
  std::string unmeasured = measured_line("unmeasured", "null");
  write_file(path, measured_line("good", ranks) + other + invalid + unmeasured);
  const ProgramRun run = run_shardplan({"accuracy", path});
  INFO(run.out);
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("4 case lines, 3 with measurements, 1 predicted\n") == 0);
  CHECK(run.out.find("unsupported: no profile for the framework 'no-such-thing': 1\n    another "
                     "framework\n") != std::string::npos);
  CHECK(run.out.find("  invalid: ") != std::string::npos);
  CHECK(run.out.find("    too many GPUs\n") != std::string::npos);

  write_file(path, measured_line("good", ranks) + "{\"id\": \"bad\"}\n");
  const ProgramRun bad = run_shardplan({"accuracy", path});
  CHECK(bad.exit_code == 2);
  CHECK(bad.out.find("  error: ") != std::string::npos);
  CHECK(bad.out.find("    bad\n") != std::string::npos);
  CHECK(bad.err.find("runs.jsonl:2") != std::string::npos);
}

TEST_CASE("the largest of all ranks is held against the fullest stage") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/runs.jsonl";
  write_file(path, measured_line("a", R"({"status": "ok", "ranks": [{"peak_allocated": 1}]})"));
  const AccuracyReport report = accuracy_report({path}, Library());
  REQUIRE(report.cases.size() == 1);
  const MemoryEstimate memory = [&] {
    const Case question = read_case(read_file(path), path, Library());
    return estimate_memory(question.job, question.plan);
  }();
  CHECK(report.cases[0].worst[kPeak]->predicted == memory.stages[0].allocated_bytes);
}

}  // namespace shardplan
