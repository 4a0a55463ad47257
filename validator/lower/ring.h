// Attention whose keys and values travel around the cp group.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Attention whose keys and values travel around the cp group.
void attend_ring(Lowering& l, const LayerActivations& a);
void attend_ring_backward(Lowering& l, const View& dqkv, const View& dout,
                          const LayerActivations& a);

}  // namespace shardplan
