// Kernels of layers whose tokens a delta net, Mamba-2 or a short convolution mixes, by PyTorch's
// operators (delta_net.h, mamba.h, short_convolution.h).
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan::huggingface {

// In place of attention and its projections; of layers with attention nothing.
void add_mixer(const BlockContext& context, const LayerSpec& layer, LayerParts& parts);

}  // namespace shardplan::huggingface
