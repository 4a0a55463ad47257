// What the rounding of a linear layer's factors to fp8 takes.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// Of `count` linear layers [m, k] -> [m, n], without their products.
BlockTime fp8_rounding(const BlockContext& context, const ProductShape& layer);

}  // namespace shardplan
