// One transformer layer: norms, attention, FFN or experts, and what of their communication stays
// visible.
#pragma once

#include "estimator/time/block_replay.h"
#include "estimator/time/block_work.h"

namespace shardplan {

LayerParts layer_parts(const BlockContext& of_layer, const LayerSpec& layer);
BlockTime sum(const LayerParts& parts);

}  // namespace shardplan
