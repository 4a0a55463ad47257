// The kernels of the blocks of Hugging Face's models, as DeepSpeed runs them.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::deepspeed {

extern const BlockKernels kKernels;

}  // namespace shardplan::deepspeed
