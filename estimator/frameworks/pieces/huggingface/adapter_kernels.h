// What runs beside the products of a layer: adapters, and weights that are unpacked or cast.
#pragma once

#include "estimator/time/block_replay.h"
#include "estimator/time/block_work.h"

namespace shardplan::huggingface {

void add_beside_products(const BlockContext& context, const LayerSpec& layer, LayerParts& parts);

}  // namespace shardplan::huggingface
