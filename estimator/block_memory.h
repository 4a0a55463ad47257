// What one block (embedding, layer, head, multi-token-prediction module) of one microbatch keeps
// and uses on one rank, as rows with a life inside the block, and the few sums that a stage needs.
// Block axes of a plan: tp, sequence_parallel, cp, cp_method, ep, etp, micro_batch, recompute,
// precision, moe_buffer_factor, and whether the schedule delays weight gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "estimator/job.h"
#include "estimator/memory_estimate.h"

namespace shardplan {

// kSentOutput: what a chunk keeps of its output after sending it on, where a profile keeps it.
enum class BlockKind { kEmbedding, kDenseLayer, kMoeLayer, kMtp, kHead, kSentOutput };
inline constexpr std::int64_t kNumBlockKinds = 6;

// The events inside a block in the order of time: forward, then backward, then the weight gradients
// that zero-bubble schedules delay. A block uses the steps that it has work for.
enum class Step {
  kForwardInput,
  kForwardNorm,
  kForwardQkv,
  kForwardLayout,
  kForwardAttention,
  kForwardProjection,
  kForwardFfnNorm,
  kForwardDispatch,
  kForwardFc1,
  kForwardActivation,
  kForwardFc2,
  kForwardUnsort,
  kForwardCombine,
  kForwardLogits,
  kForwardLoss,
  kForwardOutput,
  kBackwardOutput,
  kBackwardLoss,
  kBackwardLogits,
  kBackwardCombine,
  kBackwardUnsort,
  kBackwardFc2,
  kBackwardActivation,
  kBackwardFc1,
  kBackwardDispatch,
  kBackwardFfnNorm,
  kBackwardProjection,
  kBackwardAttention,
  kBackwardLayout,
  kBackwardQkv,
  kBackwardNorm,
  kBackwardInput,
  kWeight,
};
inline constexpr std::array<std::string_view, 33> kStepNames = {"forward.input",
                                                                "forward.norm",
                                                                "forward.qkv",
                                                                "forward.attention_layout",
                                                                "forward.attention",
                                                                "forward.projection",
                                                                "forward.ffn_norm",
                                                                "forward.dispatch",
                                                                "forward.fc1",
                                                                "forward.activation",
                                                                "forward.fc2",
                                                                "forward.unsort",
                                                                "forward.combine",
                                                                "forward.logits",
                                                                "forward.loss",
                                                                "forward.output",
                                                                "backward.output",
                                                                "backward.loss",
                                                                "backward.logits",
                                                                "backward.combine",
                                                                "backward.unsort",
                                                                "backward.fc2",
                                                                "backward.activation",
                                                                "backward.fc1",
                                                                "backward.dispatch",
                                                                "backward.ffn_norm",
                                                                "backward.projection",
                                                                "backward.attention",
                                                                "backward.attention_layout",
                                                                "backward.qkv",
                                                                "backward.norm",
                                                                "backward.input",
                                                                "backward.weight"};
inline constexpr Step kLastForward = Step::kForwardOutput;
inline constexpr Step kFirstBackward = Step::kBackwardOutput;
inline constexpr Step kLastBackward = Step::kBackwardInput;

constexpr std::string_view name_of(Step step) {
  return kStepNames[static_cast<std::size_t>(step)];
}

// One tensor of one block. It lives from `born` to `dies`, both included. In a forward that keeps
// nothing (inside a full-recompute group) it dies after `last_forward_use`.
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

  bool is_kept() const { return born <= kLastForward && dies >= kFirstBackward; }
  bool is_pending() const { return born <= kLastBackward && dies >= Step::kWeight; }
};

// How a block of some microbatch stands at an instant.
enum class BlockState {
  kCheckpointed,   // inside a group that will be recomputed: only the group's input is held
  kKept,           // between its forward and its backward
  kPending,        // between its backward-input and its weight gradient
  kRunning,        // at one step
  kRunningUnkept,  // at one forward step, keeping nothing
  kReplaying,      // last of a group that replays its forward: its output's gradient waits
};

// Whether the row holds memory in that state; `step` counts for the running states only.
bool is_alive(const BlockRow& row, BlockState state, Step step);

struct StepPeak {
  std::int64_t bytes = 0;
  Step step = Step::kForwardInput;
};

struct BlockSummary {
  std::int64_t input_bytes = 0;  // what a full-recompute group holds: the block's input
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  std::int64_t frame_bytes = 0;            // most that is neither kept nor pending, over all steps
  std::int64_t output_gradient_bytes = 0;  // held while a full-recompute group replays its forward
  StepPeak forward;
  StepPeak forward_unkept;
  StepPeak backward;  // backward-input when weight gradients are delayed
  StepPeak weight;
};

struct BlockMemory {
  BlockKind kind = BlockKind::kDenseLayer;
  std::string_view name;  // "layer.dense"
  std::vector<BlockRow> rows;
  BlockSummary summary;
};

// Index by BlockKind; kinds that the model does not have are empty.
using BlockSet = std::array<BlockMemory, kNumBlockKinds>;
BlockSet block_set(const Job& job, const Plan& plan);

// Backward is split into input and weight gradients, the latter delayed.
bool delays_weight_gradients(Schedule schedule);

BlockSummary summarise(const std::vector<BlockRow>& rows);

}  // namespace shardplan
