// Collectives by copy engines, for `calibrate --time`.
#pragma once

#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "validator/cuda/calibration.h"

namespace shardplan {

std::vector<CollectiveCurve> measure_copies(const TimeCalibration& calibration);

}  // namespace shardplan
