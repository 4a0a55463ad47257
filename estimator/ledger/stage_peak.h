// The largest allocated bytes of one pipeline rank: maximum over the states of the schedule of what
// is in flight and the running chunk's peak. Integer sums only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/plan/in_flight.h"
#include "estimator/plan/schedule.h"
#include "estimator/plan/units.h"

namespace shardplan {

Phase phase_of(MomentKind moment);

struct StagePoint {
  std::int64_t bytes = -1;  // allocated by the whole rank; -1: the moment does not occur
  std::size_t state = 0;    // index of the schedule state
  ChunkPoint point;
};

struct StagePeaks {
  std::array<StagePoint, kNumMoments> moments;
  MomentKind peak = MomentKind::kOptimizer;
  std::int64_t peak_bytes = 0;  // of the tensors alive
  // Static arenas; the dynamic one holds fixed buffers, then rings of slots, then the frame.
  std::int64_t persistent_arena_bytes = 0;
  std::int64_t dynamic_arena_bytes = 0;
  std::int64_t fixed_bytes = 0;
  std::int64_t slots_bytes = 0;
  std::int64_t frame_bytes = 0;
  std::int64_t arena_slack_bytes = 0;  // what they hold beyond peak_bytes
  std::int64_t allocated_bytes = 0;    // peak_bytes + arena_slack_bytes
  std::int64_t first_step_bytes = 0;
  std::int64_t steady_bytes = 0;  // of every later step: all moments but start-up
};

StagePeaks stage_peaks(const Job& job, const StateBytes& state, std::span<const ChunkPeaks> chunks,
                       std::span<const InFlightState> schedule);

// Sizes that a static arena takes from the chunks of a stage and the schedule.
struct ArenaSizes {
  std::int64_t frame_bytes = 0;
  std::array<std::int64_t, 3> slot_bytes{};  // of the rings, as in ChunkPeaks
  std::array<std::int64_t, kFixedPlaces.size()> fixed_bytes{};

  void raise(const ArenaSizes& other);
};
ArenaSizes arena_sizes(const ChunkPeaks& chunk);

// How many equal slots every ring needs: the running microbatch has a slot of its own.
std::array<std::int64_t, 3> ring_slots(std::span<const InFlightState> schedule);

// What the actions of a schedule hold at most, without the state: all that the peak of a rank needs
// of them.
struct ActionBytes {
  std::int64_t forward = -1;  // -1: no such action
  std::int64_t backward = -1;
  std::int64_t reduction = -1;
  ArenaSizes arena;
  std::int64_t ring_bytes = 0;
};

// Of tensors alive at once: StagePeaks::peak_bytes from sums.
inline std::int64_t alive_peak_bytes(const StateSum& state, const ActionBytes& actions) {
  std::int64_t peak =
      std::max(std::max(state.alive(Phase::kStartUp), state.alive(Phase::kReduction)),
               std::max(state.alive(Phase::kOptimizer), state.alive(Phase::kParameterGather)));
  if (actions.forward >= 0) {
    peak = std::max(peak, state.alive(Phase::kForward) + actions.forward);
  }
  if (actions.backward >= 0) {
    peak = std::max(peak, state.alive(Phase::kBackward) + actions.backward);
  }
  if (actions.reduction >= 0) {
    peak = std::max(peak, state.alive(Phase::kReduction) + actions.reduction);
  }
  return peak;
}

// What two static arenas hold around a peak.
std::int64_t arena_bytes(const StateBytes& state, const ActionBytes& actions,
                         std::int64_t peak_bytes);

// StagePeaks::allocated_bytes from sums.
inline std::int64_t allocated_bytes(AllocatorKind kind, const StateSum& state,
                                    const ActionBytes& actions) {
  const std::int64_t peak = alive_peak_bytes(state, actions);
  return kind == AllocatorKind::kStaticArenas ? arena_bytes(state.whole(), actions, peak) : peak;
}

// An upper bound of what the allocator keeps, without a replay. Not tight. What lies beyond the
// state between steps may stay behind three times: of the passes, of what follows them, and of what
// other streams still work on; tensors of the state lie in segments of 2 and 20 MiB, and those of
// start-up may stay behind. The replays of 33,000 random stages stay below it.
inline std::int64_t reserved_upper_bytes(AllocatorKind kind, const StateSum& state,
                                         std::int64_t allocated_bytes) {
  constexpr std::int64_t kSegments = 256 * kMiB;  // unfilled 2 and 20 MiB segments
  if (kind == AllocatorKind::kStaticArenas) {
    return allocated_bytes;
  }
  const std::int64_t between_steps = state.alive(Phase::kIdle);
  const std::int64_t dynamic = allocated_bytes - between_steps + state.of(&StateBytes::remade);
  return allocated_bytes + state.of(&StateBytes::side_streams) +
         state.of(&StateBytes::start_up_only) + between_steps / 8 + 3 * dynamic + kSegments;
}

// Whether the gradients of a chunk's blocks are all there, and whether the running action is the
// backward that makes those of its chunk, block by block.
bool holds_gradients(const InFlightState& state, std::size_t chunk);
// Whether the parameters of a chunk are gathered, and whether its gradients are reduced.
bool holds_parameters(const InFlightState& state, std::size_t chunk);
bool holds_reduced(const InFlightState& state, std::size_t chunk);
bool makes_gradients(const InFlightState& state);

// Blocks of one kind in one state: the peak point written out.
struct AliveBlocks {
  BlockKind kind = BlockKind::kDenseLayer;
  BlockState state = BlockState::kKept;
  Step step = Step::kForwardInput;
  std::int64_t copies = 0;
};

// Every block alive at a point of an action: the in-flight microbatches, the running one, and the
// gradients.
std::vector<AliveBlocks> alive_blocks(const StageLayout& stage, const InFlightState& in_flight,
                                      MomentKind moment, const ChunkPoint& point);

}  // namespace shardplan
