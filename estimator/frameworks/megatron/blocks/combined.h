// What the other of two microbatches holds whose layers run side by side.
#pragma once

#include <cstdint>

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// What the microbatch holds that runs forward beside this one's backward; behind all other rows.
void add_other_microbatch(MegatronBlock& block);
// Elements of the rows that a layer's experts exchange and the schedule of such layers holds
// between steps; 0 without it.
std::int64_t held_exchange(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
