// What one pipeline rank holds besides activations: parameters, gradients, optimizer state, their
// padding, gathered blocks of ZeRO-3, reduction buffers, resident workspaces.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "estimator/stage_layout.h"
#include "estimator/stage_tensors.h"
#include "estimator/state_row.h"

namespace shardplan {

struct StageState {
  std::vector<StateRow> rows;
  std::int64_t parameters = 0;  // elements on one rank before ZeRO-3 divides them
  StateBytes bytes;
};

// Everything that does not depend on the sequence or the micro-batch.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage);
// The same of tensors that are known: stage_tensors of the stage.
StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors);

// What has the size of a microbatch.
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
// What they look at of the pipeline besides the ends: equal numbers mean equal rows.
std::array<std::int64_t, 2> pipeline_seen_by_sequences(const Job& job, const Plan& plan,
                                                       std::int64_t num_microbatches);

}  // namespace shardplan
