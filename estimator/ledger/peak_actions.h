// The part of a pipeline's schedule that a timeline has to play.
#pragma once

#include <vector>

#include "estimator/ledger/stage_pieces.h"
#include "estimator/plan/schedule.h"

namespace shardplan {

// The actions of all microbatches that begin before the last peak state, and of one group more,
// which meets the allocator's cache as those before have left it; the rest repeat them.
std::vector<ScheduleAction> actions_to_peak(const Job& job, const Plan& plan,
                                            const StagePieces& pieces);

// Those of a shortest schedule with a steady part, where microbatches are not alike.
std::vector<ScheduleAction> all_actions(const Job& job, const Plan& plan,
                                        const StagePieces& pieces);

}  // namespace shardplan
