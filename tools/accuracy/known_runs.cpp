#include "tools/accuracy/known_runs.h"

#include <algorithm>
#include <cmath>

#include "estimator/estimate.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/errors.h"
#include "tools/options/case_file.h"

namespace shardplan {
namespace {

void add_run(KnownRunsReport& report, const Case& question, const std::string& place) {
  const std::int64_t num_gpus = question.job.cluster.world_size();
  if (num_gpus <= kMoreGpusThan) {
    ++report.smaller;
    return;
  }
  const std::optional<double> measured_s =
      question.measured ? measured_step_s(*question.measured, question.job) : std::nullopt;
  if (!measured_s) {
    throw InputError(place + ": " + question.id + ": found no measured step times or tokens/s");
  }
  if (const TimeRefusal refusal = why_no_step_time(question); !refusal.reason.empty()) {
    report.refused.push_back({.id = question.id, .reason = refusal.reason});
    return;
  }
  const StepTime time = estimate_step_time(question.job, question.plan);
  report.runs.push_back({.id = question.id,
                         .gpu = question.job.cluster.gpu.id,
                         .num_gpus = num_gpus,
                         .nvlink_domain = question.job.cluster.gpus_per_domain(),
                         .has_experts = question.job.model.moe.num_experts > 0,
                         .plan = question.plan,
                         .measured_s = *measured_s,
                         .predicted_s = time.total_s,
                         .predicted_mfu = time.mfu,
                         .calibrated = time.calibrated});
}

// Groups by a word of every run, in the order of the words' first appearance.
template <class WordOf>
void split_by(std::vector<RunGroup>& groups, const KnownRunsReport& report, const WordOf& word_of) {
  const std::ptrdiff_t first = std::ssize(groups);
  for (const TimedRun& run : report.runs) {
    const std::string word = word_of(run);
    auto group = std::find_if(groups.begin() + first, groups.end(),
                              [&](const RunGroup& known) { return known.name == word; });
    if (group == groups.end()) {
      groups.push_back({.name = word, .runs = {}});
      group = std::prev(groups.end());
    }
    group->runs.push_back(&run);
  }
}

}  // namespace

KnownRunsReport known_runs_report(const std::vector<std::string>& files, const Library& library) {
  KnownRunsReport report;
  for (const std::string& file : files) {
    CaseFile lines(file);
    for (CaseText line; lines.next(line);) {
      add_run(report, read_case(line.text, line.place(), library), line.place());
    }
  }
  return report;
}

RunErrors errors_of(const std::vector<const TimedRun*>& runs) {
  RunErrors errors;
  const double count = static_cast<double>(runs.size());
  std::vector<double> sizes;
  std::vector<double> measured;
  std::vector<double> predicted;
  std::vector<double> measured_mfu;
  std::vector<double> predicted_mfu;
  for (const TimedRun* run : runs) {
    const double size = std::fabs(run->error());
    if (errors.worst == nullptr || size > std::fabs(errors.worst->error())) {
      errors.worst = run;
    }
    errors.mean += size / count;
    errors.bias += run->error() / count;
    sizes.push_back(size);
    measured.push_back(run->measured_s);
    predicted.push_back(run->predicted_s);
    measured_mfu.push_back(run->measured_mfu());
    predicted_mfu.push_back(run->predicted_mfu);
  }
  errors.median = median_of(sizes);
  errors.rank_correlation = rank_correlation(measured, predicted);
  errors.mfu_rank_correlation = rank_correlation(measured_mfu, predicted_mfu);
  return errors;
}

std::vector<RunGroup> run_groups(const KnownRunsReport& report) {
  std::vector<RunGroup> groups;
  split_by(groups, report, [](const TimedRun&) { return std::string("all"); });
  split_by(groups, report,
           [](const TimedRun& run) { return std::string(run.has_experts ? "MoE" : "dense"); });
  split_by(groups, report, [](const TimedRun& run) { return run.gpu; });
  split_by(groups, report,
           [](const TimedRun& run) { return std::string(name_of(run.plan.precision)); });
  split_by(groups, report, [](const TimedRun& run) {
    return (run.num_gpus <= kManyGpus ? "at most " : "more than ") + std::to_string(kManyGpus) +
           " GPUs";
  });
  split_by(groups, report, [](const TimedRun& run) { return "source " + run.source(); });
  return groups;
}

}  // namespace shardplan
