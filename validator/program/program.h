// Program: what one rank does in one optimizer step. A tensor table and a straight list of
// operations; lowering writes it, the checks judge it, the host and the CUDA backend run it.
// Nothing is allocated outside the table and nothing inside a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/dtype.h"
#include "estimator/plan/memory_estimate.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"
#include "validator/program/fp8_format.h"

namespace shardplan {

inline constexpr std::int64_t kTensorAlignment = 256;  // bytes; of every tensor's offset and size
inline constexpr std::int64_t kFp8ScaleBytes = 256;    // in front of the factors in fp8_operands
inline constexpr std::int64_t kArenaMultiple = 2 * kMiB;  // granularity of cudaMalloc

enum class Arena {
  kPersistent,  // parameters, gradients, optimizer state: alive for the whole program
  kDynamic,     // activations, temporaries, communication buffers
};

// The shapes of memory. Each has a closed-form size; no packing is searched for.
enum class Placement {
  kFixed,  // an address of its own: persistent tensors, double buffers of the pipeline
  kSlot,   // inside one of the equal slots of a ring: what one forward pass keeps for its backward
  kFrame,  // pushed and popped within one action: temporaries
};

// One row of the table: one buffer during one lifetime. Buffers that are used again and again
// (slots, frames, double buffers) have one row per use, so that every read can be checked.
struct Tensor {
  Component component = Component::kActivations;
  std::string name = {};
  DType dtype = DType::kBf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;   // row-major
  std::int64_t bytes = 0;  // elements * bytes_of(dtype), rounded up to kTensorAlignment
  Arena arena = Arena::kDynamic;
  Placement placement = Placement::kFixed;
  std::int64_t offset = 0;  // bytes from the start of the arena
  std::int64_t born = 0;    // the first operation that uses it; persistent: 0
  std::int64_t dies = 0;    // the last operation that uses it; persistent: the program's last

  std::int64_t elements() const { return rows * cols; }
};

// A rectangle of a tensor: `rows` rows of `cols` elements, `stride` elements from row to row,
// starting `offset` elements into the tensor. tensor < 0: absent.
struct View {
  std::int64_t tensor = -1;
  std::int64_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  bool present() const { return tensor >= 0; }
  std::int64_t elements() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows == 1; }
  std::int64_t end() const { return offset + (rows - 1) * stride + cols; }  // one past the last
  friend bool operator==(const View&, const View&) = default;
};

View rows_of(const View& view, std::int64_t first, std::int64_t count);
View columns_of(const View& view, std::int64_t first, std::int64_t count);

// What an operation computes from in[] into out[]. Letters: T tokens, U rows of the residual stream
// on this rank (T / tp under sequence parallelism), h hidden, f FFN width, d head dimension, a and
// k query and kv heads of this rank, V/t rows of a vocabulary shard. "+=" reads the output's old
// value where attributes.accumulate is set and overwrites it otherwise. Sums run in the type of the
// backend (float64 on the float64 host backend).
enum class OpKind {
  // Data movement.
  kFill,      // out0 = attributes.value
  kCopy,      // out0 = in0, converted to out0's dtype; likewise any number of other pairs, whose
              // outputs are apart from all inputs and from each other
  kAdd,       // out0 = in0 + in1; in place allowed
  kSumParts,  // out0 = the sum of what kExchange left in in0, one part per member of `group` in the
              // order of the parts there, and of in1, this member's own: number attributes.member,
              // which is not read in in0. in0 and in1 are contiguous, out0 is or has in1's shape;
              // out0 may be in1, or the part of in0 that is not read
  // Blocks.
  kEmbeddingForward,   // out0 [T,h] = row in0[i] - first_row of in1 (table [V/t,h]) for ids in0
                       // [T,1]; zero where the id lies in another shard
  kEmbeddingBackward,  // out0 (table gradient [V/t,h]) += in1 [T,h] at ids in0; always accumulates
  kRmsNormForward,     // out0 [U,h] = in0 * out1 * in1 per row; out1 (1 / rms, [U,1]); in1 [1,h]
  kAddRmsNormForward,  // out2 = in0 + in2 first (the new residual), then as above on out2
  kRmsNormBackward,    // out0 (dx) = in4 (if present) + gradient from in0 (dy), in1 (x), in2
                       // (1 / rms), in3 (weight); out1 (weight gradient [1,h]) +=; out0 may be in4
  kGemm,               // out0 [m,n] += op(in0) * op(in1), op transposing where attributes say so;
                       // with attributes.fp8 both are rounded first, each under a scale of its own
  kRope,              // out0 = in0 with `heads` heads rotated by position, the lower half of a head
                      // against the upper; inverse: rotated back; in place allowed. The second half
                      // of every sequence's rows stands `position_gap` further on
  kAttentionForward,  // out0 (o [T,a*d]), out1 (log-sum-exp [T,a]) from in0 (q [T,a*d]), in1 (k),
                      // in2 (v [keys,k*d]); query head i uses kv head i / (a / k); causal
  kAttentionBackward,  // out0 (dq), out1 (dk), out2 (dv) from in0 (do), in1 q, in2 k, in3 v, in4 o,
                       // in5 log-sum-exp; dk and dv +=, dq is overwritten; out3: workspace. o and
                       // log-sum-exp may be of more keys than in2 holds: then of these their part
  kLseMerge,           // out0 (o [n,a*d]), out1 (log-sum-exp [n,a]) of some keys become those of
                       // these and in0, in1 of other keys; minus infinity: no key was seen
  kSwigluForward,      // out0 [T,f] = silu(gate) * up of in0 [T,2f], gate first
  kSwigluBackward,  // out0 [T,2f] from in0 (dy [T,f]), in1 (gate|up [T,2f]); out1, if present, is
                    // the forward's output again
  // Mixture of experts: E experts, n choices of every token, R rows that a rank can receive.
  // Experts lie on the members of a group in runs of `copies` members: run i holds experts
  // [i * experts, (i + 1) * experts), every member of it a share of their width, and receives all
  // rows that chose them, in the order of expert, member, row and choice. Counts, rows and offsets
  // stay on the device. A row at or beyond R is an overflow: it is not moved, but it is counted.
  kRouterForward,   // out0 (probabilities [U,E]) = softmax of in0 (logits), in place allowed; out1
                    // (choices [U,n]): the n likeliest experts, of equals the lower first, or with
                    // chooses_in_turn experts n*p + k modulo E, p the token's position in its
                    // sequence; out2 [U,n] their probabilities divided by their sum; out3 (counts
                    // [b,E]): how often rows of a sequence chose an expert, row i being of sequence
                    // (first_row + i) / sequence_rows
  kExpertRows,      // out0 (rows [U,n]): where the choices in0 [U,n] of member `member` go; out1
                    // (offsets [1,experts+1]): where the rows of this member's experts begin, at
                    // most `capacity`; out2 [1,1] = the larger of its old value and the most rows
                    // that any member needs. in1: the counts of all members [members*b,E]
  kExpertDispatch,  // out0 [R,h]: row in2(t,k) of the members that hold expert in1(t,k) = row t of
                    // in0 [U,h]; and out1 [R,1] = in3(t,k), if present. Collective over `group`
  kExpertCombine,  // out0 [U,h]: row t += the sum of rows in2(t,k) of in0 [R,h] of the members that
                   // hold expert in1(t,k); and out1(t,k) = that of in3 [R,1], if present.
                   // Collective over `group`
  kGroupedGemm,    // out0 [R,m] = in0 [R,k] * op(in1), in1 one matrix per expert, one below the
                   // other, for the rows between its offsets in2; other rows are not touched
  kGroupedWeightGradient,  // out0 (one [m,k] per expert) += in0 [R,m]^T * in1 [R,k] over its rows,
                           // by offsets in2
  kExpertSwigluForward,    // out0 [R,f] = in1 [R,1] * silu(gate) * up of in0 [R,2f], of the rows
                           // before the last offset of in2
  kExpertSwigluBackward,   // out0 [R,2f], out1 [R,1] (gradient of in2) from in0 (dy [R,f]), in1
                           // (gate|up), in2 [R,1], of the rows before the last offset of in3; out2,
                           // if present, is the forward's output again
  kRouterBackward,  // out0 (gradient of the logits [U,E]) from in0 (probabilities), in1 (choices),
                    // in2 (gradient of what kRouterForward divided [U,n]), and of the auxiliary
                    // loss value * sum over rows and e of in3(sequence, e) * probability e; out1
                    // [1,1] += that loss; in3: counts of whole sequences [b,E]
  // Loss over vocabulary shards. Rows of the shard at or beyond `vocab` are padding.
  kLossStatistics,  // out0 [T,3]: maximum, sum of exp(x - maximum), target's logit (0 if it lies in
                    // another shard) of in0 (logits [T,V/t]) for in1 (targets [T,1])
  kLossCombine,     // out0 [T,3] = the statistics in0 [t*T,3] of all shards combined; out1 [1,1] +=
                    // value * sum over tokens of log(sum) + maximum - target's logit
  kLossGradient,    // out0 [T,V/t] = (softmax - onehot) * value from in0 (logits), in1 (targets),
                    // in2 (combined statistics); 0 for padding; in place allowed
  // Collectives over `group`; every member runs the same ones in the same order with equal sizes.
  // Parts follow the group's order of ranks. Views are contiguous.
  kAllGather,      // out0 = in0 of all members, one after the other; or one output per member
  kReduceScatter,  // out0 = this member's part of the sum of in0 over the members; or one input per
                   // member. Here and above a member's own part may be the other side in place
  kExchange,       // part i of out0 = this member's part of member i's in0, of as many equal parts
                   // as members; or one input and one output per member. This member's own part of
                   // the output is not written
  kAllReduce,      // out0 = sum of in0 over the members; in place allowed
  kRingShift,      // in0 to the next member (of the last: the first), out0 from the one before;
                   // one grouped call, so that no order of the two can deadlock
  kSend,           // in0 to member `peer` of the group
  kReceive,        // out0 from member `peer`
  // Optimizer.
  kSquaredNorm,  // out0 [1,1] += value * sum of squares of in0
  kClipFactor,   // out0 [1,2] = min(1, value / sqrt(in0)), sqrt(in0)
  kAdamW,        // out0 master, out1, out2 first and second moment (all updated), out3 = weight in
                 // its dtype, from in0 (gradient), in1 (clip factor), in2 ([1,2]: number of the
                 // step from 1, learning rate); decoupled decay (arXiv 1711.05101)
};
inline constexpr std::int64_t kNumOpKinds = static_cast<std::int64_t>(OpKind::kAdamW) + 1;

// What a product in fp8 finds as the one before it has left it.
enum class Fp8Found {
  kNothing,
  kColumns,  // in0, kept: an output gradient, read once for the gradients of input and weight
  kWeight,   // in1, which all pieces of tokens are multiplied with
};

struct OpAttributes {
  double value = 0;
  double epsilon = 0;  // of norms and of AdamW
  bool accumulate = false;
  bool transpose_a = false;
  bool transpose_b = false;
  std::optional<Fp8Factors> fp8 = {};  // kGemm: formats of in0 and in1
  bool fp8_keeps = false;  // in0 is rounded by columns, too, for the next product in fp8
  Fp8Found fp8_finds = Fp8Found::kNothing;
  bool inverse = false;
  double theta = 0;               // kRope: base of the wavelengths
  std::int64_t batch = 1;         // attention, rope: rows are [batch, length]
  std::int64_t position_gap = 0;  // rope, router: left out between the halves of a sequence
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t query_position = 0;  // of the first row of each sequence of in0
  std::int64_t key_position = 0;    // attention: of the first key of each sequence
  std::int64_t window = 0;          // attention: keys a query sees, its own included; 0: all
  bool repeatable = false;          // kAttentionBackward: sums whose order no run changes
  std::int64_t first_row = 0;       // of the vocabulary shard; router: of in0 within the microbatch
  std::int64_t sequence_rows = 0;   // router: of one sequence of the microbatch
  bool chooses_in_turn = false;     // router: by position, not by probability
  std::int64_t experts = 0;         // of one member
  std::int64_t copies = 1;          // members that hold shares of the same experts
  std::int64_t member = 0;          // kExpertRows: this one's index; kSumParts: its part's
  std::int64_t capacity = 0;        // kExpertRows: R
  std::int64_t vocab = 0;           // entries of the whole vocabulary without padding
  std::int64_t peer = -1;           // index within the group
  std::int64_t tag = 0;             // tells messages between the same two ranks apart
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
};

// Operations of one stream run in order; across streams only events order them.
enum class Stream {
  kCompute,
  kTensor,   // collectives of tensor parallelism; keys and values gathered over cp
  kContext,  // keys, values and their gradients on their way around the cp ring
  kExperts,  // rows of tokens to and from their experts
  kData,     // gradients and parameters of data parallelism
  kSend,     // pipeline
  kReceive,  // pipeline
};
inline constexpr std::int64_t kNumStreams = 7;

struct Operation {
  OpKind kind = OpKind::kFill;
  std::vector<View> in = {};  // absent inputs keep their place
  std::vector<View> out = {};
  OpAttributes attributes = {};
  std::int64_t group = -1;  // index into Program::groups: collectives, send, receive, kSumParts
  Stream stream = Stream::kCompute;
  std::vector<std::int64_t> waits = {};  // events that must have been recorded before it starts
  std::int64_t records = -1;             // event recorded when it ends; -1: none
  std::int64_t chunk = -1;  // where it belongs: local chunk, microbatch, layer; -1: none
  std::int64_t microbatch = -1;
  std::int64_t layer = -1;
  std::string label = {};  // "forward.attention.qkv"
};

// A cut point starts a unit that a CUDA graph may capture: one action, or the optimizer.
struct CutPoint {
  std::int64_t operation = 0;
  std::string label = {};  // "forward chunk 0 slot 1"
};

// Ranks that communicate, ascending; collectives order their parts by this list.
struct Group {
  GroupKind kind = GroupKind::kTp;
  std::vector<std::int64_t> ranks = {};
};

// Elements [begin, end) of a local parameter, from element `offset` of a tensor on.
struct ParameterRange {
  std::int64_t tensor = -1;
  std::int64_t offset = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Where a logical tensor of the unsharded model lies on this rank. The local part is a matrix
// [rows, cols], row-major; its element (i, j) is element (first_row + i, first_col + j) of the
// logical matrix, or (first_row + j, first_col + i) when transposed.
struct ParameterPart {
  std::string logical = {};  // "layers.3.attention.q"
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t first_row = 0;
  std::int64_t first_col = 0;
  bool transposed = false;
  ParameterRange weight = {};
  ParameterRange master = {};
  ParameterRange gradient = {};  // whose final value this rank holds when the optimizer runs
};

// Token ids and targets of one microbatch [T,1]; the backend fills those that are present.
struct MicrobatchInputs {
  std::int64_t ids = -1;            // tensor, on ranks with the embedding
  std::int64_t targets = -1;        // tensor, on ranks with the head
  std::int64_t first_sequence = 0;  // of the global batch
};

// A run of rows of the inputs: positions of one sequence of the microbatch.
struct TokenRun {
  std::int64_t sequence = 0;
  std::int64_t first_position = 0;
  std::int64_t count = 0;
};

// Rows that a rank can receive for its experts. More are an outcome, not an error: nothing of the
// step counts then, and the factor is what would have been needed.
struct ExpertBound {
  std::int64_t required =
      -1;                 // tensor [1,1]: most rows that any rank of the group needed; -1: none
  std::int64_t rows = 0;  // that fit
  std::int64_t even_rows = 0;  // if all experts were chosen equally often
};
// plan.moe_buffer_factor with which so many rows fit, to six decimals; nothing if they do anyway.
std::optional<double> needed_buffer_factor(const ExpertBound& bound, std::int64_t required_rows);

struct Program {
  std::int64_t rank = 0;
  std::vector<Group> groups = {};
  std::vector<ParameterPart> parameters = {};
  std::vector<Tensor> tensors = {};
  std::vector<Operation> operations = {};
  std::vector<CutPoint> cuts = {};
  // Operations by index, in the order of their launches (order_launches.cpp); empty: as listed.
  // What an operation reads is what the list says: who shares bytes is launched in the list's
  // order.
  std::vector<std::int64_t> launches = {};
  std::int64_t num_events = 0;
  std::int64_t persistent_bytes = 0;  // of the arenas, multiples of kArenaMultiple
  std::int64_t dynamic_bytes = 0;
  std::vector<MicrobatchInputs> inputs = {};  // by microbatch
  std::vector<TokenRun> token_order = {};     // which tokens the rows of an input are
  std::int64_t schedule_tensor = -1;          // [1,2]: number of the step, learning rate
  std::int64_t clip = -1;                     // [1,2]: clip factor, norm of all gradients
  std::int64_t loss = -1;  // [1,1]: this rank's share of the mean loss, on ranks with the head
  std::int64_t aux_loss =
      -1;  // [1,1]: this rank's share of the routers' loss, on ranks with experts
  ExpertBound expert_bound = {};
};

std::string_view name_of(OpKind kind);
std::string_view name_of(Stream stream);

// Collectives, send and receive. Those of experts also read tensors of other members.
bool is_communication(OpKind kind);
// Whether the operation belongs to a group: what communicates, and the sum of what was exchanged.
bool has_group(OpKind kind);
// The rank's index within the operation's group.
std::int64_t index_in_group(const Program& program, const Operation& operation);
// What the operation reads of in[index] and writes of out[index]: the view, or of an exchange and
// its sum what is not this member's own part.
std::vector<View> read_views(const Program& program, const Operation& operation,
                             std::int64_t index);
std::vector<View> written_views(const Program& program, const Operation& operation,
                                std::int64_t index);
// Of all its arguments that are present.
std::vector<View> read_views(const Program& program, const Operation& operation);
std::vector<View> written_views(const Program& program, const Operation& operation);
// Whether the operation needs the old value of out[index].
bool reads_output(const Operation& operation, std::int64_t index);

// The order of launches, spelled out.
std::vector<std::int64_t> launch_order(const Program& program);

// "rank 1, operation 12 (gemm forward.attention.qkv)": the start of every message about one.
std::string place_of(const Program& program, std::int64_t operation);

// Bytes alive during each operation, both arenas, from born and dies.
std::vector<std::int64_t> live_bytes(const Program& program);

}  // namespace shardplan
