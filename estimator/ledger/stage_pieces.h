// What decides the memory of a plan, stage by stage: what estimates are read from.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/ledger/block_memory.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_peak.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/plan/in_flight.h"

namespace shardplan {

// What decides the memory of one stage.
struct StagePieces {
  StageLayout layout;
  StageState state;
  std::vector<FsdpBuffers> buffers;  // by local chunk
  std::vector<ChunkPeaks> chunks;
  std::vector<InFlightState> schedule;  // peak states
  StagePeaks peaks;
};

// What decides the memory of a plan.
struct PlanPieces {
  BlockSet blocks;
  std::vector<StagePieces> stages;        // by pipeline rank
  std::optional<std::int64_t> data_rank;  // the data-parallel rank asked for, else the fullest
};

}  // namespace shardplan
