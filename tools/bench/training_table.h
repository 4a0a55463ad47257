// What bench_training runs where no file is given, and what it says about every run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/read/case_line.h"
#include "tools/bench/step_losses.h"
#include "tools/measure/gpu_sensors.h"
#include "tools/report/table.h"

namespace shardplan {

// Tokens a second and GPU; 0: none.
struct SpeedGoal {
  double baseline = 0;  // torchtitan v0.2.2, compiled (data/measured/h200_frameworks.jsonl)
  double must = 0;
  double aim = 0;
};

struct TrainingCase {
  std::string line = {};  // a case line
  SpeedGoal goal = {};
};

// One run of one case. Seconds are of a step.
struct TrainingResult {
  Case question = {};
  std::string line = {};
  SpeedGoal goal = {};
  std::string failure = {};          // why there are no steps
  bool out_of_memory = false;        // the failure was that
  std::vector<double> steps_s = {};  // in order
  SensorMeans sensors = {};
  std::optional<double> limit_s = {};     // written down before the run (step_limit.h)
  std::optional<double> roofline_s = {};  // the same with products at the rate below
  double sustained_flops_per_s = 0;    // of a product, this run's GPUs in the mean; 0: not measured
  std::int64_t device_used_bytes = 0;  // of the fullest GPU
  std::string attention = {};
  std::string products = {};
  std::vector<StepLoss> losses = {};  // of one more step on one rank

  double tokens_per_s_per_gpu(double step_s) const;
};

// The value that this share of the sorted values does not exceed, one that was measured.
double percentile(std::vector<double> values, double share);

// What the GPUs, libraries and the program were, the same for all runs of a process.
struct TrainingRun {
  std::string command = {};
  std::string commit = {};
  std::string machine = {};
  std::string sensors_absent = {};
};

// One row for each run: tokens/s/GPU at the median step and at those of the 10th and 90th
// percentile, clock and power, shares of the roofline and of the limit, baseline and goals.
Table training_table(const std::vector<TrainingResult>& results);
// "12.34 ms of product where 11.20 would do": the losses of one run, the largest first.
std::string losses_text(const TrainingResult& result);

}  // namespace shardplan
