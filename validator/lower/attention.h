// Attention of a layer on packed q, k, v.
#pragma once

#include <cstdint>
#include <vector>

#include "validator/lower/lowering_state.h"

namespace shardplan {

void attention_forward(Lowering& l, const LayerActivations& a);
void attention_backward(Lowering& l, const View& dqkv, const View& dout, const LayerActivations& a);
// Of attention: an operation without its arguments, and columns of packed q, k, v and of k, v.
Operation attention(const Lowering& l, OpKind kind, std::int64_t batch,
                    std::int64_t first_position);
View queries_of(const Lowering& l, const View& qkv);
View keys_and_values_of(const Lowering& l, const View& qkv);
View keys_of(const Lowering& l, const View& kv);
View values_of(const Lowering& l, const View& kv);
// Scratch of one call of attention's backward pass, on the frame.
enum class KeyGradients { kWritten, kAdded };
View backward_workspace(Lowering& l, std::int64_t batch, std::int64_t queries, std::int64_t keys,
                        KeyGradients key_gradients);
void rotate_forward(Lowering& l, const View& qkv);  // positions of q and k, in place
void rotate_backward(Lowering& l, const View& dqkv);

// Runs of positions of one sequence that this rank holds: two zigzag chunks under cp, else one.
std::vector<TokenRun> runs_of_sequence(const Job& job, const Plan& plan, std::int64_t cp_rank);
// query_position and position_gap of all of this rank's rows of a sequence.
void set_positions(const Lowering& l, OpAttributes& attributes);

}  // namespace shardplan
