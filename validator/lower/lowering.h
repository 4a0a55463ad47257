// The passes of lower(), all of validator/lower/; only those include this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Specifications of tensors.
TensorSpec temporary(std::string name, std::int64_t rows, std::int64_t cols);
TensorSpec statistics(std::string name, std::int64_t rows, std::int64_t cols);  // fp32
TensorSpec kept(TensorSpec spec);                                               // as activation
TensorSpec exchanged(TensorSpec spec);  // as communication buffer

// Appends an operation, labelled "<phase>.<label>".
void emit(Lowering& l, Operation operation, const std::string& label);

// Whether a gradient holds something of this step already; from now on it does.
bool accumulates(Lowering& l, const View& gradient);

// Which products of a linear layer round their factors to which formats, by fp8.cpp.
void in_fp8_forward(const Lowering& l, Operation& product);
void in_fp8_input_gradient(const Lowering& l, Operation& product);
void in_fp8_weight_gradient(const Lowering& l, Operation& product);
// Where a product's rounded factors lie while it runs.
void place_fp8_operands(Lowering& l);

// Linear layers on row-major [tokens, features] matrices and [outputs, inputs] weights.
void linear(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
            const std::string& label);
void linear_input_gradient(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                           const std::string& label);
void linear_weight_gradient(Lowering& l, const PlacedWeight& w, const View& dy, const View& x,
                            const std::string& label);

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

// Tokens that tp ranks gather or sum as one piece, so that the products of other pieces run
// meanwhile. Under sequence parallelism every rank holds its part of every piece: the rows
// [row, row + rows) of its residual stream are those of tokens [token, token + tokens).
struct TokenPiece {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t token = 0;
  std::int64_t tokens = 0;
};
std::vector<TokenPiece> token_pieces(const Lowering& l);
// Where tokens of all tp ranks lie under sequence parallelism, for the whole step: what goes from
// one product to the next passes through the first cell, the inputs of weight gradients that are
// gathered again lie in the second.
void place_token_cells(Lowering& l);
enum class GatheredFor { kProduct, kWeightGradient };
// linear() and linear_input_gradient() piece by piece: of rows that are gathered, or that are
// summed over tp.
void linear_in_pieces(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
                      const std::string& label);
void input_gradient_in_pieces(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                              const std::string& label);
// Rows of all tp ranks under sequence parallelism, until the next ones take their cell; else x.
View gathered(Lowering& l, const View& x, const std::string& label,
              GatheredFor what = GatheredFor::kProduct);
// Where a product writes what is summed over tp: partial sums of all tokens under sequence
// parallelism, else `out` itself.
View partial_sums(Lowering& l, const View& out);
// `out` becomes the sum of partial_sums() over tp: rows of the residual stream, or all tokens.
void reduce_over_tp(Lowering& l, const View& partial, const View& out, const std::string& label);
// Calls write(where) with the place of the partial sums, which become `out`.
template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write);

template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write) {
  const View partial = partial_sums(l, out);
  write(partial);
  reduce_over_tp(l, partial, out, label);
}

// These go piece by piece, too.
void rms_norm(Lowering& l, const View& y, const View& rstd, const View& x, const PlacedWeight& w,
              const std::string& label);
void add_rows(Lowering& l, const View& out, const View& x, const View& y, const std::string& label);
// out = dx + gradient through the norm; out may be dx.
void rms_norm_backward(Lowering& l, const View& out, const View& dx, const View& dy, const View& x,
                       const View& rstd, const PlacedWeight& w, const std::string& label);

// Where the activations of a layer lie, by its index in the model: in the slot what it keeps for
// its backward (under selective recompute some is absent), or all of it on the frame.
LayerActivations kept_activations(Lowering& l, std::int64_t layer, const View& x,
                                  const InFlight& flight);
LayerActivations frame_activations(Lowering& l, std::int64_t layer, const View& x);
// The experts' part, of the layer that is being lowered: what is absent is put on the frame.
LayerActivations with_experts_on_frame(Lowering& l, LayerActivations a);

// The passes.
void place_weights(Lowering& l);
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
// Attention whose keys and values travel around the cp group.
void attend_ring(Lowering& l, const LayerActivations& a);
void attend_ring_backward(Lowering& l, const View& dqkv, const View& dout,
                          const LayerActivations& a);
void rotate_forward(Lowering& l, const View& qkv);  // positions of q and k, in place
void rotate_backward(Lowering& l, const View& dqkv);
void layer_forward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& out);
// The MoE FFN of a layer: what its backward reads of it, then its output; dx with the gradient
// added.
void moe_activation(Lowering& l, const LayerWeights& w, const LayerActivations& a);
void moe_output(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& y);
View moe_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx);
// What a layer keeps, without its output.
void layer_replay(Lowering& l, const LayerWeights& w, const LayerActivations& a);
// The gradient of the layer's input from that of its output.
View layer_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx);
void embedding_forward(Lowering& l, const ChunkWeights& w, const View& x);
void embedding_backward(Lowering& l, const ChunkWeights& w, const View& dx);
// Final norm, head and loss of x, forward and at once backward into its gradient dx.
void head(Lowering& l, const ChunkWeights& w, const View& x, const View& dx);
void chunk_forward(Lowering& l, std::int64_t chunk, std::int64_t microbatch);
void chunk_backward(Lowering& l, std::int64_t chunk, std::int64_t microbatch);
void chunk_weights(Lowering& l, std::int64_t chunk, std::int64_t microbatch);
// Units (sharding.cpp): before a pass uses their weights; around one that adds gradients.
void place_unit_cells(Lowering& l);
void gather_weights(Lowering& l, ChunkWeights& w, const Unit& unit);
void begin_gradients(Lowering& l, ChunkWeights& w, const Unit& unit);
void end_gradients(Lowering& l, ChunkWeights& w, const Unit& unit);
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

// Runs of positions of one sequence that this rank holds: two zigzag chunks under cp, else one.
std::vector<TokenRun> runs_of_sequence(const Job& job, const Plan& plan, std::int64_t cp_rank);
// query_position and position_gap of all of this rank's rows of a sequence.
void set_positions(const Lowering& l, OpAttributes& attributes);

}  // namespace shardplan
