// The mixture-of-experts FFN of a layer.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

// The MoE FFN of a layer: what its backward reads of it, then its output; dx with the gradient
// added.
void moe_activation(Lowering& l, const LayerWeights& w, const LayerActivations& a);
void moe_output(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& y);
View moe_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx);

}  // namespace shardplan
