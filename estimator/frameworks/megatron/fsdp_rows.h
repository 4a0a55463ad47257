// Buffers of Megatron-FSDP as rows of the ledger.
#pragma once

#include <vector>

#include "estimator/ledger/stage_pieces.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan::megatron {

// Adds the buffers around the unit that runs at the peak.
void add_fsdp_rows(std::vector<Row>& rows, const Job& job, const Plan& plan,
                   const StagePieces& pieces);

}  // namespace shardplan::megatron
