// Data parallelism beside the passes: when gradients are reduced and weights are gathered.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Units (sharding.cpp): before a pass uses their weights; around one that adds gradients.
void place_unit_cells(Lowering& l);
void gather_weights(Lowering& l, ChunkWeights& w, const Unit& unit);
void begin_gradients(Lowering& l, ChunkWeights& w, const Unit& unit);
void end_gradients(Lowering& l, ChunkWeights& w, const Unit& unit);

}  // namespace shardplan
