// Weight gradients, at once or in an action of their own.
#pragma once

#include <functional>
#include <string>

#include "validator/lower/lowering_state.h"

namespace shardplan {

// One side of a weight gradient: this rank's rows, and those of all tp ranks if they are gathered
// already. gathered_name: under sequence parallelism the rows must be gathered, with this name.
struct Operand {
  View own = {};
  View all = {};
  std::string gathered_name = {};
};
// Runs work on weight gradients at once, or in the microbatch's weight action.
void at_weight_gradients(Lowering& l, std::function<void(Lowering&)> work);
// The gradient of a weight: at once, or by the microbatch's weight action.
void weight_gradient(Lowering& l, const PlacedWeight& w, const Operand& dy, const Operand& x,
                     const std::string& label);
// What a weight gradient reads and backward writes: on the frame, or kept for the weight action.
View for_weight_gradient(Lowering& l, const TensorSpec& spec);
// Where the gradient of the residual stream goes on behind dx: in its place, or beside it where a
// delayed weight gradient reads dx. leaves_layer: it is the gradient of the layer's input.
View next_residual_gradient(Lowering& l, const View& dx, bool leaves_layer);

}  // namespace shardplan
