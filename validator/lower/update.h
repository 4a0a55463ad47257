// Sums of gradients over ranks, and the update of the weights.
#pragma once

#include <cstdint>

#include "validator/lower/lowering_state.h"

namespace shardplan {

void gather_updated(Lowering& l, const FlatBuffer& buffer);  // the parts of whole weights

// Gradients that are whole on every rank, behind the last pass that adds to them.
void reduce_whole(Lowering& l, const FlatBuffer& buffer);
// Gradients of a table that two stages share, behind the last backward pass of either.
void reduce_tied_gradients(Lowering& l, const ChunkWeights& w);
// Whether they hold the table that two stages share.
bool is_tied(const Lowering& l, const ChunkWeights& w, const FlatBuffer& buffer);
// Sums over replicas, and over tp what every tp rank holds, of reduced gradients.
void finish_gradients(Lowering& l, const FlatBuffer& buffer);
Operation data_collective(OpKind kind, const View& in, const View& out, std::int64_t group);
bool shares_embedding(const Lowering& l, const ChunkWeights& w);
void update_weights(Lowering& l);

}  // namespace shardplan
