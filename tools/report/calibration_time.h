// The JSON of `calibrate --time`: the GPU's file with measured rates in it.
#pragma once

#include <string>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// The text of a GPU file with these rates in it.
std::string with_measured_times(const std::string& gpu_file, const MeasuredTimes& times);

}  // namespace shardplan
