// Published runs on many GPUs: the figures by hand on a few runs, the rule by which runs are there,
// and the errors against tests/tools/accuracy/known_runs_bounds.csv. After an intended change:
// SHARDPLAN_UPDATE_BOUNDS=1 build/accuracy_tests, then read the diff: what grew is worse.
#include "tools/accuracy/known_runs.h"
#include "tests/tools/accuracy/bounds.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/errors.h"
#include "tools/options/case_file.h"
#include "tools/report/known_runs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace shardplan {
namespace {

const std::string kBounds =
    std::string(SHARDPLAN_SOURCE_DIR) + "/tests/tools/accuracy/known_runs_bounds.csv";
const std::string kPublished = std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/";

TimedRun run(const char* id, double measured_s, double predicted_s) {
  TimedRun run;
  run.id = id;
  run.gpu = "H100-SXM-80GB";
  run.num_gpus = 128;
  run.measured_s = measured_s;
  run.predicted_s = predicted_s;
  run.predicted_mfu = 0.4;
  return run;
}

const KnownRunsReport& published() {
  static const KnownRunsReport report =
      known_runs_report({kPublished + "known_runs.jsonl", kPublished + "dgxc_runs.jsonl",
                         kPublished + "layouts/vtrain.jsonl", kPublished + "layouts/bloom.jsonl"},
                        Library());
  return report;
}

double rounded_up(double share) {
  return std::ceil(share * 1e5 - 1e-6) / 1e3;  // percent
}

// Every figure is one where less is better.
Figures figures_of(const KnownRunsReport& report) {
  Figures figures;
  for (const RunGroup& group : run_groups(report)) {
    const RunErrors errors = errors_of(group.runs);
    figures[group.name + "; mean |error| %"] = rounded_up(errors.mean);
    figures[group.name + "; worst |error| %"] = rounded_up(std::fabs(errors.worst->error()));
    figures[group.name + "; 100 (1 - Spearman)"] = rounded_up(1 - errors.rank_correlation);
  }
  figures["all; refused"] = static_cast<double>(report.refused.size());
  return figures;
}

}  // namespace

TEST_CASE("errors of known runs are of step times, and MFU is measured as it is predicted") {
  const TimedRun slow = run("x-1", 10, 12);
  const TimedRun fast = run("x-2", 8, 6);
  const TimedRun right = run("y-1", 4, 4.2);
  const RunErrors errors = errors_of({&slow, &fast, &right});
  CHECK(errors.mean == doctest::Approx((0.2 + 0.25 + 0.05) / 3));
  CHECK(errors.median == doctest::Approx(0.2));
  CHECK(errors.bias == doctest::Approx((0.2 - 0.25 + 0.05) / 3));
  CHECK(errors.worst == &fast);
  CHECK(errors.rank_correlation == doctest::Approx(1));
  CHECK(slow.measured_mfu() == doctest::Approx(0.48));  // a step of 10 s instead of 12
  CHECK(fast.source() == "x");
}

TEST_CASE("every split of the known runs holds each of them once") {
  KnownRunsReport report;
  report.runs = {run("x-1", 1, 1), run("x-2", 2, 2), run("y-1", 3, 3)};
  report.runs[1].has_experts = true;
  report.runs[2].num_gpus = 513;
  std::map<std::string, std::size_t> sizes;
  for (const RunGroup& group : run_groups(report)) { sizes[group.name] = group.runs.size(); }
  CHECK(sizes == std::map<std::string, std::size_t>{{"all", 3},
                                                    {"dense", 2},
                                                    {"MoE", 1},
                                                    {"H100-SXM-80GB", 3},
                                                    {"bf16", 3},
                                                    {"at most 512 GPUs", 2},
                                                    {"more than 512 GPUs", 1},
                                                    {"source x", 2},
                                                    {"source y", 1}});
}

// The rates of the H100 SXM were measured on a host that has seen none of these runs.
TEST_CASE("known runs are on more than 64 GPUs, predicted from datasheets or calibrate's rates") {
  const KnownRunsReport& report = published();
  CHECK(report.runs.size() + report.refused.size() == 97 + 80 + 50 + 65);
  CHECK(report.smaller == 56 + 18);  // DGXC's on 8 to 64, vTrain's on 64
  CHECK(report.refused.empty());
  std::set<std::string> ids;
  for (const TimedRun& run : report.runs) {
    CAPTURE(run.id);
    ids.insert(run.id);
    CHECK(run.num_gpus > kMoreGpusThan);
    CHECK(run.calibrated == (run.gpu == "H100-SXM-80GB"));
    CHECK(run.predicted_s > 0);
  }
  CHECK(ids.size() == report.runs.size());
}

TEST_CASE("every known run stands in each report") {
  const std::string text = known_runs_text(published());
  const std::string csv = known_runs_csv(published());
  for (const TimedRun& run : published().runs) {
    CHECK(text.find(run.id) != std::string::npos);
    CHECK(csv.find(run.id + ",") != std::string::npos);
  }
  CHECK(std::ranges::count(csv, '\n') == std::ssize(published().runs) + 1);
}

// Megatron-MoE-ModelZoo at e865051, best_practice/qwen3/readme.md: TFLOP/s with forced balance and
// without, by Megatron-LM's count (training/training.py, num_floating_point_operations): six times
// the active weights but the table's, and half of the square of attention, forward and twice
// backward.
TEST_CASE("long sequences of the model zoo are its TFLOP/s by Megatron-LM's count") {
  const std::map<std::int64_t, double> forced = {
      {16384, 295}, {32768, 335}, {65536, 368}, {131072, 389}};
  const std::map<std::int64_t, double> unforced = {
      {16384, 237}, {32768, 277}, {65536, 320}, {131072, 357}};
  const Library library;
  CaseFile lines(kPublished + "known_runs.jsonl");
  std::size_t checked = 0;
  for (CaseText line; lines.next(line);) {
    const Case known = read_case(line.text, line.place(), library);
    const auto& tflops = known.job.profile.moe_load_spread > 0 ? unforced : forced;
    const auto published = tflops.find(known.job.sequence_length);
    if (!known.id.starts_with("modelzoo-") || published == tflops.end()) {
      continue;
    }
    const double s = static_cast<double>(known.job.sequence_length);
    const double flops_of_token = 6 * (22'190'763'520.0 - 151'936 * 4096) + 6 * 94 * 8192 * s;
    const double step_s = 256 * s * flops_of_token / (256 * published->second * 1e12);
    CHECK(known.measured->step_times_s[0] == doctest::Approx(step_s).epsilon(0.001));
    ++checked;
  }
  CHECK(checked == forced.size() + unforced.size());
}

// arXiv 2104.04473: TFLOP/s of table 1 count the forward pass twice, F = 96 B s l h^2 (1 + s / (6
// h)
// + V / (16 l h)) with V = 51200.
TEST_CASE("step times of PTD-P are the published TFLOP/s by the paper's own count") {
  const std::map<std::int64_t, double> tflops = {{128, 142},  {256, 135},  {512, 138},
                                                 {1024, 140}, {1536, 148}, {1920, 155},
                                                 {2520, 163}, {3072, 163}};
  const Library library;
  CaseFile lines(kPublished + "known_runs.jsonl");
  std::size_t checked = 0;
  for (CaseText line; lines.next(line);) {
    const Case known = read_case(line.text, line.place(), library);
    if (!known.id.starts_with("ptdp-")) {
      continue;
    }
    const auto number = [](std::int64_t count) { return static_cast<double>(count); };
    const double l = number(known.job.model.num_layers());
    const double h = number(known.job.model.hidden);
    const double s = number(known.job.sequence_length);
    const double gpus = number(known.job.cluster.world_size());
    const double flops = 96 * number(known.job.global_batch) * s * l * h * h *
                         (1 + s / (6 * h) + 51200 / (16 * l * h));
    const double published_s = flops / (gpus * 1e12 * tflops.at(known.job.cluster.world_size()));
    CHECK(*measured_step_s(*known.measured, known.job) ==
          doctest::Approx(published_s).epsilon(0.001));
    ++checked;
  }
  CHECK(checked == tflops.size());
}

TEST_CASE("errors over the known runs are at most as recorded") {
  check_against_bounds(figures_of(published()), kBounds, ';');
}

}  // namespace shardplan
