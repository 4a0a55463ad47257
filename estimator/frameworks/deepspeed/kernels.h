// The kernels of the blocks of Hugging Face's models, as DeepSpeed runs them.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan {

extern const BlockKernels kDeepspeedKernels;

}  // namespace shardplan
