// How nanotron lays out a pipeline.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan::nanotron {

// models/base.py, build_model; models/llama.py, get_block_compute_costs.
inline constexpr FrameworkLayout kLayout = {.deals_blocks_by_cost = true};

}  // namespace shardplan::nanotron
