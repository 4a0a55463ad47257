// Where the weights of a rank lie.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

// The passes.
void place_weights(Lowering& l);

}  // namespace shardplan
