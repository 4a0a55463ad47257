// One pipeline rank's answer.
#pragma once

#include <cstdint>
#include <optional>

#include "estimator/ledger/stage_pieces.h"
#include "estimator/plan/memory_estimate.h"

namespace shardplan {

PlanPieces plan_pieces(const Job& job, const Plan& plan,
                       std::optional<std::int64_t> data_rank = std::nullopt);

// Rows, moments, components and all totals up to allocated_bytes and outside_bytes; reserved and
// required are those of an allocator without gaps.
StageMemory stage_memory(const Job& job, const Plan& plan, const BlockSet& blocks,
                         const StagePieces& pieces);

}  // namespace shardplan
