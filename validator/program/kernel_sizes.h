// What the kernels of the CUDA backend ask of a plan's sizes; the host backend takes any.
#pragma once

#include <optional>
#include <string>

#include "estimator/plan/job.h"

namespace shardplan {

// Nothing, or the size on a rank for which there is no kernel (the limits that the headers of
// kernels/ state): "ffn / tp: found 172, expected a multiple of 8". For plans that are valid and
// lowered.
std::optional<std::string> why_no_kernels(const Job& job, const Plan& plan);

}  // namespace shardplan
