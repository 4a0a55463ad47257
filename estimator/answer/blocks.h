// What a framework's blocks keep and use.
#pragma once

#include "estimator/ledger/block_memory.h"

namespace shardplan {

// Whether plans of the job can have blocks of the kind. Rows of others are empty.
bool has_block(const Job& job, BlockKind kind);
BlockMemory block_memory(const Job& job, const Plan& plan, BlockKind kind);
BlockSet block_set(const Job& job, const Plan& plan);

// Whether rows of the job's framework look at more of a plan than SeenByBlock has, or may.
bool rows_see_whole_plan(const Job& job);
SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind);

}  // namespace shardplan
