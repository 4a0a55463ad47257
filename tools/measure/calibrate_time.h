// shardplan calibrate --time: rates of this machine's GPUs, into a file for --gpu. Runs inside
// shardplan-validate-cuda.
#pragma once

#include <string>

#include "estimator/plan/cluster_spec.h"
#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_time_calibration(const Arguments& arguments);

// The text of a GPU file with these rates in it.
std::string with_measured_times(const std::string& gpu_file, const MeasuredTimes& times);

}  // namespace shardplan
