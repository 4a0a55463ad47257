// What the passes of lower() share: sizes on this rank, its weights, what is in flight, and the
// builder that they all write to. Only validator/lower*.cpp include this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "estimator/layer_partition.h"
#include "validator/lower.h"
#include "validator/program_builder.h"

namespace shardplan {

struct Lowering;

struct LocalSizes {
  std::int64_t tokens = 0;  // of one microbatch after cp
  std::int64_t rows = 0;    // of the residual stream: tokens, / tp under sequence parallelism
  std::int64_t hidden = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab_rows = 0;  // of this shard, padding included
  std::int64_t first_vocab_row = 0;
  // Layers with experts.
  std::int64_t own_rows = 0;       // tokens / tp: the tp ranks divide them to route them
  std::int64_t choices = 0;        // of a token
  std::int64_t experts = 0;        // on this rank
  std::int64_t expert_ffn = 0;     // of this rank's share
  std::int64_t shared_ffn = 0;     // 0: no shared experts
  std::int64_t even_rows = 0;      // received if all experts are chosen equally often
  std::int64_t received_rows = 0;  // at most

  std::int64_t query_width() const { return query_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
};

// A parameter and its gradient, both [outputs, inputs] (norms [1, hidden]) in their flat buffers.
struct Weight {
  View weight = {};
  View gradient = {};
};

// Flat buffers of a chunk that are used together, by index: what is reduced and gathered as one
// unit.
using Unit = std::vector<std::size_t>;

struct LayerWeights {
  std::int64_t layer = 0;
  Unit unit = {};
  Weight attention_norm = {};
  Weight qkv = {};  // q, k, v rows one after the other
  Weight projection = {};
  Weight ffn_norm = {};
  Weight gate_up = {};  // gate rows, then up rows; with experts: of the shared ones, if any
  Weight down = {};
  Weight router = {};
  Weight expert_gate_up = {};  // expert by expert: gate rows, then up rows
  Weight expert_down = {};     // expert by expert
};

// Groups of one kind of parameters, into Program::groups; -1: this rank alone.
struct DataGroups {
  std::int64_t all = -1;      // gradients are summed over these ranks
  std::int64_t shard = -1;    // those that share one copy of what is sharded
  std::int64_t replica = -1;  // those that hold the same shard
};

// A parameter of a flat buffer, in elements.
struct FlatParameter {
  Weight* weight = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Parameters that are reduced, sharded and updated together, as one flat matrix [1, elements]:
// matrices, then a copy of the tied embedding whose norm another rank counts, then what every tp
// rank holds (routers, norms). Every tensor has all elements or this rank's shard of them.
struct FlatBuffer {
  bool is_expert = false;
  DataGroups groups = {};
  std::int64_t num_shards = 1;
  std::int64_t shard = 0;          // of this rank
  std::int64_t elements = 0;       // padded for the shards
  std::int64_t copy_begin = 0;     // matrices end, the tied copy begins
  std::int64_t routers_begin = 0;  // the copy ends
  std::int64_t norms_begin = 0;    // the routers end
  std::vector<FlatParameter> parameters = {};
  std::size_t cell = 0;          // of the double buffers, where weights or gradients are sharded
  std::int64_t passes_left = 0;  // of this step that write or add to the gradient
  bool begins_step = false;      // used before anything that a gather could hide behind
  bool is_gathered = false;      // this step, where whole weights stay on the rank
  View weight = {};
  View gradient = {};
  View master = {};
  View exp_avg = {};
  View exp_avg_sq = {};

  std::int64_t shard_elements() const { return div_exact(elements, num_shards); }
  std::int64_t shard_begin() const { return shard * shard_elements(); }
  std::int64_t shard_end() const { return shard_begin() + shard_elements(); }
  bool has_weight_shard() const { return weight.cols < elements; }
  bool has_gradient_shard() const { return gradient.cols < elements; }
  bool has_master_shard() const { return master.cols < elements; }
  // Of whole weights the rank updates its part only: others are gathered before the next use.
  bool updates_part() const { return has_master_shard() && !has_weight_shard(); }
  bool is_gathered_late() const { return updates_part() && !begins_step; }
  // The parameters' first element that a tensor of the buffer holds, and one past its last.
  std::int64_t begin_of(const View& tensor) const {
    return tensor.cols == elements ? 0 : shard_begin();
  }
  std::int64_t end_of(const View& tensor) const { return begin_of(tensor) + tensor.cols; }
  // Elements [begin, end) of the parameters in a tensor of the buffer.
  View range(const View& tensor, std::int64_t begin, std::int64_t end) const {
    return columns_of(tensor, begin - begin_of(tensor), end - begin);
  }
  View owned(const View& tensor) const { return range(tensor, shard_begin(), shard_end()); }
};

// The weights of one local chunk: a flat buffer for every kind of groups and unit, or one for the
// whole chunk where no ranks share it.
struct ChunkWeights {
  ModelChunk chunk = {};
  Unit embedding_unit = {};
  Unit head_unit = {};  // head and final norm
  Weight embedding = {};
  Weight head = {};
  Weight final_norm = {};
  std::vector<LayerWeights> layers = {};
  std::vector<FlatBuffer> buffers = {};
};

// The same of a layer's experts.
struct ExpertActivations {
  View probabilities = {};
  View choices = {};
  View rows = {};     // of the choices, where they go
  View counts = {};   // of choices, by sequence and expert
  View offsets = {};  // of what this rank's experts received
  View weights = {};  // of the received rows
  View received = {};
  View gate_up = {};
  View activation = {};
};

// What the forward pass of a layer keeps; absent: written again when needed.
struct LayerActivations {
  View x = {};
  View attention_rstd = {};
  View attention_normed = {};
  View qkv = {};
  View attention_output = {};
  View log_sum_exp = {};
  View middle = {};  // x + attention
  View ffn_rstd = {};
  View ffn_normed = {};
  View gate_up = {};  // dense FFN, or the shared experts
  View activation = {};
  ExpertActivations experts = {};
};

// Neighbouring layers of a chunk that are recomputed together, or one layer that is not.
struct LayerGroup {
  std::int64_t first = 0;  // within the chunk
  std::int64_t count = 1;
  bool is_recomputed = false;
};

struct InFlight {
  Slot slot = {};
  Slot inputs = {};  // of products whose weight gradients wait for their own action; else `slot`
  std::vector<LayerActivations> layers = {};  // of recomputed groups only the first layer's x
  View output_gradient = {};                  // with the head: of the last layer's output
};

// What backward leaves to the microbatch's weight action.
struct PendingWeights {
  Slot inputs = {};  // of forward
  Slot slot = {};
  std::int64_t first_layer = 0;  // of the chunk
  View input_gradient = {};      // that is sent on; absent on the first stage
  std::vector<std::function<void(Lowering&)>> work = {};
};

// An address that takes turns between units, and the unit whose weights lie there now.
struct UnitCell {
  Cell cell = {};
  std::int64_t elements = 0;  // of the largest unit that uses it
  const FlatBuffer* tenant = nullptr;
};
// By FlatBuffer::cell: dense first and second, expert first and second.
inline constexpr std::size_t kNumUnitCells = 4;

struct CommunicatorIndex {  // into Program::groups; -1: this rank alone
  std::int64_t tp = -1;
  std::int64_t cp = -1;
  std::int64_t pp = -1;
  std::int64_t embedding = -1;
  std::int64_t tp_cp = -1;    // ranks that divide sequences
  std::int64_t experts = -1;  // ranks that exchange rows: ep * etp, present even for one rank
  DataGroups dense = {};
  DataGroups expert = {};
};

struct Lowering {
  const Job& job;
  const Plan& plan;
  const Hyperparameters& hyperparameters;
  RankCoordinates at = {};
  LocalSizes sizes = {};
  CommunicatorIndex groups = {};
  ProgramBuilder& builder;
  std::vector<ChunkWeights> chunks = {};                                     // by local chunk
  std::map<std::pair<std::int64_t, std::int64_t>, InFlight> in_flight = {};  // by chunk, microbatch
  std::map<std::pair<std::int64_t, std::int64_t>, PendingWeights> pending_weights = {};  // likewise
  PendingWeights* pending = nullptr;  // of the backward action that is being lowered, if split
  std::vector<UnitCell> unit_weights = {};    // ZeRO 3: gathered weights
  std::vector<UnitCell> unit_gradients = {};  // ZeRO 2, 3: before reduction
  std::vector<Cell> output_cells = {};        // outputs on their way to the next stage, in turn
  std::vector<Cell> gradient_cells = {};      // gradient of the residual stream, in turn
  std::int64_t num_outputs = 0;               // sent so far
  std::int64_t num_gradients = 0;
  std::set<std::pair<std::int64_t, std::int64_t>> written =
      {};  // gradients this step: tensor, offset
  View loss = {};
  View aux_loss = {};
  View fp8_kept = {};              // the output gradient whose columns the last product rounded
  View required_rows = {};         // [1,1]: most rows that an expert's rank needed
  std::int64_t expert_member = 0;  // index of this rank in groups.experts
  View clip = {};                  // [1,2] factor, norm
  View schedule = {};              // [1,2] number of the step, learning rate
  // Where the operations that are emitted belong.
  std::string phase = {};
  std::int64_t chunk = -1;
  std::int64_t microbatch = -1;
  std::int64_t layer = -1;

  const Program& program() const { return builder.program(); }
  bool has_sequence_parallel() const { return plan.sequence_parallel && plan.tp > 1; }
  bool has_experts(std::int64_t model_layer) const {
    return job.model.layers[static_cast<std::size_t>(model_layer)].is_moe;
  }
  bool splits_backward() const { return plan.schedule == Schedule::kZbH1; }
};

// Operations of its scope belong to another phase: "replay" within "backward".
class PhaseScope {
 public:
  PhaseScope(Lowering& l, std::string phase) : l_(l), before_(std::move(l.phase)) {
    l.phase = std::move(phase);
  }
  ~PhaseScope() { l_.phase = std::move(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Lowering& l_;
  std::string before_;
};

// Specifications of tensors.
TensorSpec temporary(std::string name, std::int64_t rows, std::int64_t cols);
TensorSpec statistics(std::string name, std::int64_t rows, std::int64_t cols);  // fp32
TensorSpec kept(TensorSpec spec);                                               // as activation
TensorSpec exchanged(TensorSpec spec);  // as communication buffer

// Appends an operation, labelled "<phase>.<label>".
void emit(Lowering& l, Operation operation, const std::string& label);

// Whether a gradient holds something of this step already; from now on it does.
bool accumulates(Lowering& l, const View& gradient);

// Which products of a linear layer round their factors to which formats, by lower_fp8.cpp.
void in_fp8_forward(const Lowering& l, Operation& product);
void in_fp8_input_gradient(Lowering& l, Operation& product);
void in_fp8_weight_gradient(Lowering& l, Operation& product);
// Where a product's rounded factors lie while it runs.
void place_fp8_operands(Lowering& l);

// Linear layers on row-major [tokens, features] matrices and [outputs, inputs] weights.
void linear(Lowering& l, const View& y, const View& x, const Weight& w, const std::string& label);
void linear_input_gradient(Lowering& l, const View& dx, const View& dy, const Weight& w,
                           const std::string& label);
void linear_weight_gradient(Lowering& l, const Weight& w, const View& dy, const View& x,
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
void weight_gradient(Lowering& l, const Weight& w, const Operand& dy, const Operand& x,
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
// linear() and linear_input_gradient() piece by piece: of rows that are gathered, or that are
// summed over tp.
void linear_in_pieces(Lowering& l, const View& y, const View& x, const Weight& w,
                      const std::string& label);
void input_gradient_in_pieces(Lowering& l, const View& dx, const View& dy, const Weight& w,
                              const std::string& label);
// Rows of all tp ranks under sequence parallelism, on the frame; else x itself.
View gathered(Lowering& l, const View& x, const std::string& label);
// The sum over tp of a partial result [tokens, h] as rows of the residual stream: `write` gets
// where to write the partial result.
template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write);
// All-reduce over tp, or reduce-scatter of `partial` into `out`; nothing for tp 1.
void reduce_over_tp(Lowering& l, const View& partial, const View& out, const std::string& label);

template <class Write>
void write_reduced(Lowering& l, const View& out, const std::string& label, const Write& write) {
  const FrameScope scope(l.builder);
  View partial = out;
  if (l.has_sequence_parallel()) {
    partial =
        l.builder.push(exchanged(temporary(label + ".partial", l.sizes.tokens, l.sizes.hidden)));
  }
  write(partial);
  reduce_over_tp(l, partial, out, label);
}

void rms_norm(Lowering& l, const View& y, const View& rstd, const View& x, const Weight& w,
              const std::string& label);
// out = dx + gradient through the norm; out may be dx.
void rms_norm_backward(Lowering& l, const View& out, const View& dx, const View& dy, const View& x,
                       const View& rstd, const Weight& w, const std::string& label);

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
// Units (lower_sharding.cpp): before a pass uses their weights; around one that adds gradients.
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

}  // namespace shardplan
