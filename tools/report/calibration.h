// The JSON of `calibrate`: the plans that it runs, the GPU's file that it writes again, and the
// host's.
#pragma once

#include <string>

#include "estimator/plan/cluster_spec.h"
#include "tools/measure/calibrate_memory.h"

namespace shardplan {

std::string calibration_case(const std::string& gpu, CalibrationPlan plan);

// The text of a GPU file with these values in it.
std::string with_native_memory(const std::string& gpu_file, const NativeMemory& memory);

// The text of a cluster file: one host with so many of this GPU, whose file stands in it, so that
// the file is whole by itself. Where collectives of several group sizes were measured, the latency
// of a step inside the NVLink domain is what a further rank adds to the smallest all-gather; else,
// and for all others, what is usual for the GPU.
std::string calibrated_cluster(const std::string& gpu_file, std::int64_t num_gpus,
                               const std::string& source);

}  // namespace shardplan
