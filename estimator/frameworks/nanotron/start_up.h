// What nanotron allocates, in order, before its first step.
#pragma once

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::nanotron {

BuiltStage start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                    const StageTensors& tensors);

}  // namespace shardplan::nanotron
