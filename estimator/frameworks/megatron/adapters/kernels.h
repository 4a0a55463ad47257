// What adapters run beside the products of a layer of Megatron-core.
#pragma once

#include "estimator/time/block_experts.h"
#include "estimator/time/block_layer.h"

namespace shardplan::megatron {

void add_adapters_beside_products(const BlockContext& context, const LayerSpec& layer,
                                  LayerParts& parts);

}  // namespace shardplan::megatron
