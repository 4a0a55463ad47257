// The kernels of nanotron's blocks.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan {

extern const BlockKernels kNanotronKernels;

}  // namespace shardplan
