// Kernels of gated delta nets and of gated attention.
#pragma once

#include "estimator/time/block_layer.h"
#include "estimator/time/block_replay.h"

namespace shardplan::megatron {

// What mixes the tokens of a layer without attention, and its projections.
void add_mixer(const BlockContext& context, const LayerSpec& layer, LayerParts& parts);

// The gate of attention's output.
void add_output_gate(const BlockContext& context, const LayerSpec& layer, LayerParts& parts);

}  // namespace shardplan::megatron
