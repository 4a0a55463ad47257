// What communication beside computation costs: what computation does not hide, and what both lose
// to each other.
#pragma once

#include <cstdint>

#include "estimator/cluster_spec.h"

namespace shardplan {

// A collective of cost_s alone beside computation of compute_s alone: the seconds that it adds.
// Where measured, both run at their share of the rate while both run; elsewhere the collective
// takes its SMs from the computation. Never more than cost_s where rates were measured.
double beside_compute_s(const GpuSpec& gpu, double cost_s, double compute_s);

// The same in equal pieces, each beside the computation of another: one has nothing to hide behind.
double in_pieces_s(const GpuSpec& gpu, double cost_s, double compute_s, std::int64_t pieces);

}  // namespace shardplan
