// Collectives, for `calibrate --time`.
#pragma once

#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "validator/cuda/calibration.h"

namespace shardplan {

// Groups of 2, 4, 8, ... of the GPUs; a thread for each. By NCCL, and by copy engines: these in
// groups that can (copy_group.h), collectives that copies alone do.
std::vector<CollectiveCurve> measure_collectives(const TimeCalibration& calibration);

}  // namespace shardplan
