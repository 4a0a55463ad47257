// How nanotron lays out a pipeline.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan {

// models/base.py, build_model; models/llama.py, get_block_compute_costs.
inline constexpr FrameworkLayout kNanotronLayout = {.deals_blocks_by_cost = true};

}  // namespace shardplan
