// nanotron, whose model is plain PyTorch modules under autograd: its blocks, and its
// state (state.cpp).
#pragma once

#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/ledger/state_row.h"

namespace shardplan {

std::vector<BlockRow> nanotron_rows(const Job& job, const Plan& plan, BlockKind kind);
// Logits, their cast and the loss, which may lie on different ranks, are kinds of their own.
bool has_nanotron_block(const Job& job, BlockKind kind);

std::vector<StateRow> nanotron_state_rows(const Job& job, const Plan& plan,
                                          const StageLayout& stage, const StageTensors& tensors);
SequenceRows nanotron_sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends);
BuiltStage nanotron_start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                             const StageTensors& tensors);

}  // namespace shardplan
