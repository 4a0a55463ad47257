// Products beside collectives, for `calibrate --time`.
#pragma once

#include <optional>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// What products and collectives leave of each other's rates on the first two GPUs: collectives of
// NCCL, and gathers by copy engines, nothing where those two GPUs do not reach each other's memory.
BesideRates measure_beside();
std::optional<BesideRates> measure_beside_copies();

}  // namespace shardplan
