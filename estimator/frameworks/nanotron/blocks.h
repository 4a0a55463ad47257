// Blocks of nanotron, whose model is plain PyTorch modules under autograd.
#pragma once

#include <vector>

#include "estimator/ledger/block_rows.h"

namespace shardplan::nanotron {

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind);
// Logits, their cast and the loss, which may lie on different ranks, are kinds of their own.
bool has_own_block(const Job& job, BlockKind kind);

}  // namespace shardplan::nanotron
