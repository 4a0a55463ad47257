// Differences between the allocations of the ranks of a pipeline stage.
#pragma once

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/stage_pieces.h"

namespace shardplan {

// Timelines of a stage's ranks are equal where these are.
struct RankTensors {
  BuiltStage built;
  std::int64_t rank = 0;  // where more than what it builds depends on it, else 0
  friend bool operator==(const RankTensors&, const RankTensors&) = default;
};

// `rank`: whose share of a sharded optimizer, where the profile's timeline has its tensors
// (Megatron-core's; DeepSpeed's ZeRO-1 and 2, counted from the rank of the state), and whose loads
// of experts.
RankTensors rank_tensors(const Job& job, const Plan& plan, const StagePieces& pieces,
                         std::int64_t rank);

}  // namespace shardplan
