// How far off step times are for published runs on many GPUs: every run with its error, and what
// they say together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "estimator/plan/plan.h"

namespace shardplan {

inline constexpr std::int64_t kMoreGpusThan = 64;  // smaller runs are counted, not shown
inline constexpr std::int64_t kManyGpus = 512;     // the split by number of GPUs

// One run; seconds of a step.
struct TimedRun {
  std::string id;
  std::string gpu;
  std::int64_t num_gpus = 0;
  std::int64_t nvlink_domain = 0;  // GPUs of this run; beyond it the network's datasheet counts
  bool has_experts = false;
  Plan plan;
  double measured_s = 0;
  double predicted_s = 0;
  double predicted_mfu = 0;
  bool calibrated = false;  // the GPU's figures were measured; else datasheet

  double error() const { return predicted_s / measured_s - 1; }
  double measured_mfu() const { return predicted_mfu * predicted_s / measured_s; }
  std::string source() const { return id.substr(0, id.find('-')); }  // "dgxc" of "dgxc-25.01-..."
};

struct RefusedRun {
  std::string id;
  std::string reason;  // what of it no profile describes
};

struct KnownRunsReport {
  std::vector<TimedRun> runs;  // in the order of the files
  std::vector<RefusedRun> refused;
  std::int64_t smaller = 0;  // runs on at most kMoreGpusThan GPUs
};

// Lines without a measured speed are InputErrors, as are lines that cannot be read.
KnownRunsReport known_runs_report(const std::vector<std::string>& files, const Library& library);

// Of the errors of step times; at least one run.
struct RunErrors {
  double mean = 0;    // of |error|
  double median = 0;  // of |error|
  double bias = 0;    // mean of the signed errors
  const TimedRun* worst = nullptr;
  double rank_correlation = 0;      // Spearman's, of step times
  double mfu_rank_correlation = 0;  // of MFU, which does not grow with model and batch
};
RunErrors errors_of(const std::vector<const TimedRun*>& runs);

struct RunGroup {
  std::string name;
  std::vector<const TimedRun*> runs;
};
// "all", then dense and MoE, GPUs, precisions, numbers of GPUs and sources, as far as there are
// runs. Valid while the report is.
std::vector<RunGroup> run_groups(const KnownRunsReport& report);

}  // namespace shardplan
