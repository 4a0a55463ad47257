// Kernels of Mamba-2 by mamba_ssm.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan::megatron {

// Convolution, scan, gate and norm of a microbatch on one rank.
BlockTime mamba_scan(const BlockContext& context);

}  // namespace shardplan::megatron
