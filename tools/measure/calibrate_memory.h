// shardplan calibrate --memory: what a process of the trainer takes of this machine's GPUs beside
// its arenas and its communicators, into a file for --gpu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "tools/commands/command.h"
#include "validator/supervise/outcome.h"

namespace shardplan {

// A small plan that was run on fresh processes: of each rank what the driver said, and what its
// communicators take by their law.
struct CalibrationRun {
  std::vector<RankMemory> ranks;
  std::vector<std::int64_t> communicator_bytes;
  std::string machine = {};
};

// One GPU alone; two that reduce gradients; two that also send to each other. The last two are
// empty where there is one GPU.
NativeMemory fitted_memory(const CalibrationRun& alone, const CalibrationRun& reducing,
                           const CalibrationRun& sending);

// The case line of such a plan, of the widths of an 8B model, so that its products load what real
// ones do; two layers.
enum class CalibrationPlan { kAlone, kReducing, kSending };

ExitCode run_calibration(const Arguments& arguments);

}  // namespace shardplan
