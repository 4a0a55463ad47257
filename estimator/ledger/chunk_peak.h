// The largest bytes of one microbatch in one chunk, by named point of the step, and what it keeps
// between its actions. Integer sums only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "estimator/ledger/fsdp_buffers.h"
#include "estimator/ledger/stage_layout.h"

namespace shardplan {

// Named points of a step.
enum class MomentKind {
  kStartUp,
  kForward,
  kLossForward,
  kReplay,
  kBackward,
  kLossBackward,
  kWeight,
  kReduction,
  kOptimizer,
  kParameterGather,
};
inline constexpr std::int64_t kNumMoments = 10;
inline constexpr std::array<std::string_view, kNumMoments> kMomentNames = {
    "start-up",       "last warm-up forward", "loss forward",    "recompute replay",
    "first backward", "loss backward",        "weight gradient", "gradient reduction",
    "optimizer step", "parameter gather"};
constexpr std::string_view name_of(MomentKind moment) {
  return kMomentNames[static_cast<std::size_t>(moment)];
}

// Where in a chunk an action stands. Blocks before the running one, in forward order, are kept;
// blocks after it have passed their backward.
struct ChunkPoint {
  std::int64_t bytes = -1;  // of the running microbatch's blocks in this chunk; -1: no such point
  std::size_t unit = 0;
  std::int64_t units_before = 0;   // equal units of the same run in front of the running one
  std::size_t block = 0;           // run of blocks inside the unit
  std::int64_t blocks_before = 0;  // equal blocks of that run in front of the running one
  Step step = Step::kForwardInput;
  std::optional<BlockKind> entered = {};  // the block behind, whose first rows are being written
};

using ChunkPoints = std::array<ChunkPoint, kNumMoments>;  // by MomentKind

struct ChunkPeaks {
  std::int64_t kept_bytes = 0;      // of one microbatch between forward and backward
  std::int64_t pending_bytes = 0;   // between backward-input and weight gradient
  std::int64_t gradient_bytes = 0;  // from the chunk's first backward on
  std::int64_t gathered_bytes = 0;  // of its parameters
  std::int64_t reduced_bytes = 0;   // of its gradients once they are reduced
  std::int64_t frame_bytes = 0;     // of the frame of a static arena, at most
  // Of its slots: from forward to backward, from forward to the weight gradient, from backward on.
  std::int64_t saved_slot_bytes = 0;
  std::int64_t input_slot_bytes = 0;
  std::int64_t pending_slot_bytes = 0;
  std::array<std::int64_t, kFixedPlaces.size()> fixed_bytes{};  // of its fixed buffers
  ChunkPoints points;                                           // only those inside actions
  ChunkPoints first_points;      // of the backward that makes the gradients
  ChunkPoints gathering_points;  // of one that finds them, but not the parameters
};

// `buffers`: of the chunk; its bytes count where a unit runs.
ChunkPeaks chunk_peaks(const ChunkLayout& chunk, const BlockSummaries& blocks,
                       const FsdpBuffers& buffers);

// Place of the running unit in the chunk, equal ones counted one by one.
std::size_t unit_place(const ChunkLayout& chunk, const ChunkPoint& point);

}  // namespace shardplan
