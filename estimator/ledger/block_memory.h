// What one block (embedding, layer, head, multi-token-prediction module) of one microbatch keeps
// and uses on one rank, as rows with a life inside the block, and the few sums that a stage needs.
// Block axes of a plan: tp, sequence_parallel, cp, cp_method, ep, etp, micro_batch, recompute,
// precision, moe_buffer_factor, and whether the schedule delays weight gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/block_steps.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

// kSentOutput: what a chunk keeps of its output after sending it on, where a profile keeps it.
// kOtherLayer, kFurtherLayer: layers that differ from the first with, or without, experts by more
// than these (layer_blocks.h). kFirstLayer, kLastLayer: layers at the ends of a chunk,
// kFirstMoeLayer: behind one without experts, where a profile's buffers of neighbouring blocks make
// them differ from the rest.
enum class BlockKind {
  kEmbedding,
  kFirstLayer,
  kDenseLayer,
  kFirstMoeLayer,
  kMoeLayer,
  kOtherLayer,
  kFurtherLayer,
  kLastLayer,
  kMtp,
  kHead,
  kLogits,  // a head without a loss behind it: nanotron's, on different ranks
  kCast,    // of such logits to fp32
  kLoss,
  kSentOutput,
};
inline constexpr std::int64_t kNumBlockKinds = 14;
inline constexpr std::array<std::string_view, kNumBlockKinds> kBlockNames = {
    "embedding", "layer.first", "layer.dense",   "layer.first_moe",
    "layer.moe", "layer.other", "layer.further", "layer.last",
    "mtp",       "head",        "logits",        "logits.cast",
    "loss",      "sent_output"};

// Where a row lies in the dynamic arena of a profile that has one.
enum class Place {
  kOwn,              // in the microbatch's slot if backward needs it, else pushed on the frame
  kShared,           // where another row of the frame or of a slot lies
  kPendingSlot,      // in the slot that waits for weight gradients, however long it lives
  kOutputBuffers,    // fixed: outputs on their way to the next stage
  kGradientBuffers,  // fixed: the gradient of the residual stream
};
inline constexpr std::array kFixedPlaces = {Place::kOutputBuffers, Place::kGradientBuffers};

// One of the tensors that follow each other within a step. It is freed once `lives` more of them
// have been allocated, the last ones at the end of the row.
struct PassingTensor {
  std::int64_t bytes = 0;
  std::int64_t lives = 1;
};

// What a row belongs to: the steps of a microbatch, or the parameters and gradients of a block that
// FSDP2 gathers and reduces for all microbatches of a pipeline.
enum class RowOf {
  kSteps,
  kGathered,   // there while the chunk's parameters are
  kReduction,  // while the block's gradients are reduced
  kReduced,    // from then on
};

// One tensor of one block. It lives from `born` to `dies`, both included. In a forward that keeps
// nothing (inside a full-recompute group) it dies after `last_forward_use`. On the frame it takes
// room from `pushed` to `popped`.
struct BlockRow {
  Component component = Component::kActivations;
  std::string_view name;
  std::int64_t elements = 0;
  DType dtype = DType::kBf16;
  std::int64_t bytes = 0;
  Step born = Step::kForwardInput;
  Step last_forward_use = Step::kForwardInput;
  Step dies = Step::kForwardInput;
  std::string_view formula;
  RowOf of = RowOf::kSteps;
  Place place = Place::kOwn;
  std::int64_t buffers = 0;  // fixed places: how many of this size
  Step pushed = Step::kForwardInput;
  Step popped = Step::kForwardInput;
  bool is_gradient = false;         // made by the first backward, there until gradients are reduced
  bool is_made_again = false;       // by later ones, too, which add theirs and free it
  bool gathers = false;             // of a backward that finds the block's parameters sharded
  bool is_not_replayed = false;     // of the first forward alone
  bool outlives_recompute = false;  // held though the block's activations are recomputed
  bool is_of_group = false;         // held by a recomputed group's backward, in its last block
  bool is_first_product = false;    // of forward's or autograd's thread, in some kind of block
  bool is_handed_on = false;        // stays, as a row of the block that runs next
  bool is_taken_over = false;       // is what the block that ran before has handed on
  bool is_added = false;            // into the output gradient: in place, if nobody else holds that
  bool follows_load = false;        // of the rows that routers send here, which vary by chance
  bool is_freed_in_use = false;     // another stream still adds it to a gradient, or sends it
  AllocationStream stream = AllocationStream::kCompute;
  std::vector<std::int64_t> parts = {};  // bytes of its tensors where it stands for several
  // What the replay allocates in its place, where it stands for tensors that follow each other.
  std::vector<PassingTensor> passing = {};
  // A tensor of the state that the first row of this size makes, and the replay keeps; the row
  // itself holds nothing.
  std::int64_t made_once_bytes = 0;

  bool is_of_steps() const { return of == RowOf::kSteps; }
  bool is_kept() const { return born <= kLastForward && dies >= kFirstBackward; }
  bool is_pending() const { return !is_gradient && born <= kLastBackward && dies >= Step::kWeight; }
};

// How a block of some microbatch stands at an instant.
enum class BlockState {
  kCheckpointed,  // inside a group that will be recomputed: the group's input, and what outlives
  kKept,          // between its forward and its backward
  kPending,       // between its backward-input and its weight gradient
  kRunning,       // at one step
  kRunningAgain,  // at one step, its gradients made before and counted apart
  kRunningGathering,  // the same, its parameters sharded before
  kRunningReplay,     // at one forward step in backward
  kRunningUnkept,     // at one forward step, keeping nothing
  kRunningFirst,      // the same, first of a group that will be recomputed: its input is held
  kGradients,         // holds gradients, whatever else it holds
  kReplaying,         // last of a group that replays its forward: its output's gradient waits
  kGroupAt,           // the last of a group in backward, at one step: what the group holds besides
  kGroup,             // the same while another block of the group runs
  kGathered,          // holds gathered parameters, whatever else it holds
  kReducing,          // its gradients are being reduced: what that takes besides
  kReduced,           // they are
};

// Whether the row holds memory in that state; `step` counts for the running states only.
bool is_alive(const BlockRow& row, BlockState state, Step step);

struct StepPeak {
  std::int64_t bytes = 0;
  Step step = Step::kForwardInput;
};

// Most that the frame of a static arena holds during one block.
struct FrameBytes {
  std::int64_t entry = 0;  // in front of the block, while those before it run
  std::int64_t forward = 0;
  std::int64_t forward_unkept = 0;  // with everything that would be kept, except the input
  std::int64_t replay = 0;          // of the last block of a group
  std::int64_t backward = 0;
};

struct BlockSummary {
  std::int64_t input_bytes = 0;  // what a full-recompute group holds: the block's input
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t regathered_bytes = 0;  // of those, where a backward may have to gather them
  std::int64_t reduction_bytes = 0;
  std::int64_t reduced_bytes = 0;
  std::int64_t kept_pending_bytes = 0;     // of both: from forward to the weight gradient
  std::int64_t passing_bytes = 0;          // in the slot of the pending ones, but not pending
  std::int64_t group_bytes = 0;            // held besides by a group's backward, of its last block
  std::int64_t output_gradient_bytes = 0;  // held while a full-recompute group replays its forward
  StepPeak forward;
  StepPeak forward_unkept;
  StepPeak forward_first;
  StepPeak replay;              // forward again, last of its group
  StepPeak backward;            // backward-input when weight gradients are delayed
  StepPeak first_backward;      // with the gradients that it makes
  StepPeak gathering_backward;  // with the parameters that it gathers, without gradients
  StepPeak group_backward;      // last of a recomputed group, with what that holds besides
  StepPeak weight;
  // While its last forward step writes the input of the block behind it.
  std::int64_t output_bytes = 0;
  std::int64_t output_unkept_bytes = 0;
  std::int64_t output_first_bytes = 0;
  // Of its rows, where the block before it writes them with its own last step.
  bool writes_next_input = false;  // this block does so to the next one
  std::int64_t input_entry_bytes = 0;
  std::int64_t norm_entry_bytes = 0;
  FrameBytes frame;
  std::array<std::int64_t, kFixedPlaces.size()> fixed_bytes{};
};

struct BlockMemory {
  BlockKind kind = BlockKind::kDenseLayer;
  std::string_view name;  // "layer.dense"
  std::vector<BlockRow> rows;
  bool has_frame = false;             // in a static arena
  bool writes_next_input = false;     // with its last forward step; else a row of its own does
  Step last_replayed = kLastForward;  // where the replay of a group ends in its last block
  BlockSummary summary;
};

// What the rows of a kind of block look at of a plan's choices: plans that agree in it, and in tp,
// sequence_parallel, cp, micro_batch, precision and whether weight gradients are delayed, have
// equal rows.
struct SeenByBlock {
  Recompute recompute;
  bool experts = false;  // etp, moe_buffer_factor, and
  std::int64_t ep = 1;   // an ep, at most the plan's, with which they are equal
  bool cp_method = false;
  std::int64_t gradients = 0;  // how products hand on gradients of weights, as one number
};

// Index by BlockKind.
using BlockSet = std::array<BlockMemory, kNumBlockKinds>;

// What sums over blocks need of them, by BlockKind.
using BlockSummaries = std::array<BlockSummary, kNumBlockKinds>;
BlockSummaries summaries_of(const BlockSet& blocks);

enum class Pass { kForward, kReplay };
// The first step of a block that runs together with the last forward step of the block before it.
// The residual addition and the norm of two layers are one kernel where neither overwrites what the
// other reads; in a replay the norm's output comes to lie where the addend lay.
Step entry_step(Pass pass, BlockKind before, BlockKind block);
// Bytes of the block's rows alive then; 0 where blocks do not write each other's rows.
std::int64_t entry_bytes(const BlockSummaries& blocks, Pass pass, BlockKind before,
                         BlockKind block);

BlockSummary summarise(const BlockMemory& block);

}  // namespace shardplan
