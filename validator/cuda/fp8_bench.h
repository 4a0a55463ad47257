// Products in fp8, for `calibrate --time`.
#pragma once

#include "estimator/plan/cluster_spec.h"
#include "validator/cuda/calibration.h"

namespace shardplan {

// Products in fp8, behind large ones of their kind; empty where the GPU has none.
GemmGrid measure_gemm_fp8(const TimeCalibration& calibration, cudaStream_t stream);

}  // namespace shardplan
