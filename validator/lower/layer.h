// One transformer layer, forward and backward.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

void layer_forward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& out);

// What a layer keeps, without its output.
void layer_replay(Lowering& l, const LayerWeights& w, const LayerActivations& a);
// The gradient of the layer's input from that of its output.
View layer_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx);

}  // namespace shardplan
