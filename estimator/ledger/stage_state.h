// What one pipeline rank holds besides activations: parameters, gradients, optimizer state, their
// padding, gathered blocks of ZeRO-3, reduction buffers, resident workspaces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/ledger/chunk_peak.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
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

// Everything that does not depend on the sequence or the micro-batch; all of DeepSpeed, of the
// fullest data-parallel rank where none is given.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       std::optional<std::int64_t> data_rank = std::nullopt);
// The same of tensors that are known: stage_tensors of the stage.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors,
                       std::optional<std::int64_t> data_rank = std::nullopt);

// What has the size of a microbatch.
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
// What they look at of the pipeline besides the ends: equal numbers mean equal rows.
std::array<std::int64_t, 2> pipeline_seen_by_sequences(const Job& job, const Plan& plan,
                                                       std::int64_t num_microbatches);

}  // namespace shardplan
