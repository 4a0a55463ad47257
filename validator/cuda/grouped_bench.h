// Products of experts, for `calibrate --time`.
#pragma once

#include "estimator/plan/cluster_spec.h"
#include "validator/cuda/calibration.h"

namespace shardplan {

// Products of the experts of a rank, one launch for all, by our own kernels.
GroupedRates measure_grouped(const TimeCalibration& calibration, cudaStream_t stream);

}  // namespace shardplan
