// The kernels of our own trainer's blocks.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::native {

extern const BlockKernels kKernels;

// Whether our own kernels for attention run on warpgroups (kernels/attention/attention.h). If so,
// our trainer leaves backward calls on gathered keys to them: they add up gradients by themselves
// and work on the keys that queries see, where cuDNN does neither (kernels/attention/call.h).
bool attends_on_warpgroups(const GpuSpec& gpu, std::int64_t head_dim);

}  // namespace shardplan::native
