// The products by which Muon makes a matrix orthogonal.
#pragma once

#include <cstdint>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Of Newton and Schulz's iteration, as Emerging-Optimizers and torch.optim.Muon
// (DEFAULT_NS_STEPS) have it unless they are told otherwise.
inline constexpr int kNewtonSchulzSteps = 5;

// Seconds of all steps' products in bf16 of one matrix.
double newton_schulz_s(const GpuSpec& gpu, std::int64_t rows, std::int64_t columns);

}  // namespace shardplan
