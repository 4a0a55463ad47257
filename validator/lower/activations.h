// What one layer keeps from its forward pass for its backward pass.
#pragma once

#include <cstdint>

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Where the activations of a layer lie, by its index in the model: in the slot what it keeps for
// its backward (under selective recompute some is absent), or all of it on the frame.
LayerActivations kept_activations(Lowering& l, std::int64_t layer, const View& x,
                                  const InFlight& flight);
LayerActivations frame_activations(Lowering& l, std::int64_t layer, const View& x);
// The experts' part, of the layer that is being lowered: what is absent is put on the frame.
LayerActivations with_experts_on_frame(Lowering& l, LayerActivations a);

}  // namespace shardplan
