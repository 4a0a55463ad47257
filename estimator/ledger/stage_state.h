// What one pipeline rank holds besides activations: parameters, gradients, optimizer state, their
// padding, gathered blocks of ZeRO-3, reduction buffers, resident workspaces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/state_row.h"

namespace shardplan {

// Peaks of a rank whose allocations are played in full: its rows are those of the fullest instant
// of each phase, activations and all.
struct PlayedPeaks {
  std::int64_t rank = 0;                            // of the data-parallel ones
  std::array<std::int64_t, kNumMoments> moments{};  // by MomentKind; -1: does not occur
  std::int64_t first_step_bytes = 0;
  std::int64_t steady_bytes = 0;
};

struct StageState {
  std::vector<StateRow> rows;
  std::int64_t parameters = 0;  // elements on one rank before ZeRO-3 divides them
  StateBytes bytes;
  std::optional<PlayedPeaks> played;  // DeepSpeed
};

}  // namespace shardplan
