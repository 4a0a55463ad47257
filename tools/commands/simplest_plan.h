// The simplest of the plans that are as fast as the first of a search, as far as the model can
// tell.
#pragma once

#include <optional>

#include "tools/report/report.h"

namespace shardplan {

// Fixes one axis after the other at its simplest value, the least usual first (interleaving,
// contexts, replicas, stages, recomputation, tensors), and keeps what leaves a plan within the
// uncertainty of the first. Each is a search of a part of the space, with the prices of the whole.
// Nothing where the first plan is the simplest.
std::optional<SimplerPlan> simplest_tied(const Job& job, SearchSpace space, SearchOptions options,
                                         const RankedPlan& first, PriceTables& prices);

}  // namespace shardplan
