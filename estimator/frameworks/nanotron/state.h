// What a rank of nanotron holds besides activations: rows of its state, and rows of its sequences.
#pragma once

#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan::nanotron {

std::vector<StateRow> state_rows(const Job& job, const Plan& plan, const StageLayout& stage,
                                 const StageTensors& tensors);
SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);

}  // namespace shardplan::nanotron
