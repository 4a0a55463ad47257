// The kernels of nanotron's blocks.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::nanotron {

extern const BlockKernels kKernels;

}  // namespace shardplan::nanotron
