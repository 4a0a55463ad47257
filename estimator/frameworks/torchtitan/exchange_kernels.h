// Kernels around what torchtitan's ranks exchange: rows of experts, hidden states along the
// sequence, keys and values of a ring. The columns of BlockKernels that they fill say what each is.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::torchtitan {

BlockTime expert_exchange(const BlockContext& context, double rows);
BlockTime torchtitan_sequence_copies(const BlockContext& context, double in_bytes,
                                     double out_bytes);
BlockTime torchtitan_ring_merges(const BlockContext& context, const LayerSpec& layer,
                                 const AttentionWork& work);

}  // namespace shardplan::torchtitan
