// shardplan calibrate --time: rates of this machine's GPUs, into a file for --gpu. Runs inside
// shardplan-validate-cuda.
#pragma once

#include <string>

#include "estimator/plan/cluster_spec.h"
#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_time_calibration(const Arguments& arguments);

}  // namespace shardplan
