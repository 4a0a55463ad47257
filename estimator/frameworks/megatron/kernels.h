// The kernels of Megatron-LM's blocks.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::megatron {

extern const BlockKernels kKernels;       // with Transformer Engine's layers
extern const BlockKernels kLocalKernels;  // with the local layer spec
// Transformer Engine's without what it chooses by GPU and what experts cost besides their products
// and exchanges: for runs of which only a paper tells.
extern const BlockKernels kPaperKernels;

}  // namespace shardplan::megatron
