// What a rank of the native trainer holds besides activations: the persistent arena of its program,
// tensor by tensor, and what the end of a step takes from the frame.
#pragma once

#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::native {

// Flat buffers of every chunk, scalars, the gradient norm.
std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors);

// Token ids and labels of a step, the rotary table.
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);

}  // namespace shardplan::native
