// What the rounding of a linear layer's factors to fp8 takes.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// Of `count` linear layers [m, k] -> [m, n], without their products.
BlockTime fp8_rounding(const BlockContext& context, const ProductShape& layer);

// What libraries round, with so many bytes an element: of the input and of so many elements of the
// weight in forward, and of the output's gradient in backward. They read 2 bytes and write 1 byte
// in two layouts.
BlockTime rounding_by_library(const BlockContext& context, const ProductShape& layer, double bytes,
                              double weights);

}  // namespace shardplan
