// What the passes of lower() share: sizes on this rank, its weights, what is in flight, and the
// builder that they all write to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "estimator/plan/layer_partition.h"
#include "validator/lower/lower.h"
#include "validator/program/builder.h"

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
struct PlacedWeight {
  View weight = {};
  View gradient = {};
};

// Flat buffers of a chunk that are used together, by index: what is reduced and gathered as one
// unit.
using Unit = std::vector<std::size_t>;

struct LayerWeights {
  std::int64_t layer = 0;
  Unit unit = {};
  PlacedWeight attention_norm = {};
  PlacedWeight qkv = {};  // q, k, v rows one after the other
  PlacedWeight projection = {};
  PlacedWeight ffn_norm = {};
  PlacedWeight gate_up = {};  // gate rows, then up rows; with experts: of the shared ones, if any
  PlacedWeight down = {};
  PlacedWeight router = {};
  PlacedWeight expert_gate_up = {};  // expert by expert: gate rows, then up rows
  PlacedWeight expert_down = {};     // expert by expert
};

// Groups of one kind of parameters, into Program::groups; -1: this rank alone.
struct DataGroups {
  std::int64_t all = -1;      // gradients are summed over these ranks
  std::int64_t shard = -1;    // those that share one copy of what is sharded
  std::int64_t replica = -1;  // those that hold the same shard
};

// A parameter of a flat buffer, in elements.
struct FlatParameter {
  PlacedWeight* weight = nullptr;
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
  PlacedWeight embedding = {};
  PlacedWeight head = {};
  PlacedWeight final_norm = {};
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
  Cell exchanged_tokens = {};                 // of all tp ranks: see place_token_cells
  Cell gathered_inputs = {};
  std::vector<Cell> output_cells = {};    // outputs on their way to the next stage, in turn
  std::vector<Cell> gradient_cells = {};  // gradient of the residual stream, in turn
  std::int64_t num_outputs = 0;           // sent so far
  std::int64_t num_gradients = 0;
  std::set<std::pair<std::int64_t, std::int64_t>> written =
      {};  // gradients this step: tensor, offset
  View loss = {};
  View aux_loss = {};
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

}  // namespace shardplan
