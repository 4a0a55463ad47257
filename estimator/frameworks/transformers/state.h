// What a rank of transformers' Trainer has allocated, read from its tape.
#pragma once

#include "estimator/ledger/stage_state.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

// Rows and peaks of the first data-parallel rank, which has the most of shards that do not divide.
// `parameters` and `bytes` are left to the caller.
StageState state_of_stage(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
