// Blocks of the job's framework: their rows, their buckets, and how much of a plan they look at.
#pragma once

#include "estimator/ledger/block_memory.h"
#include "estimator/ledger/fsdp_buffers.h"
#include "estimator/ledger/stage_layout.h"

namespace shardplan {

// Whether plans of the job can have blocks of the kind. Rows of others are empty.
bool has_block(const Job& job, BlockKind kind);
BlockMemory block_memory(const Job& job, const Plan& plan, BlockKind kind);
BlockSet block_set(const Job& job, const Plan& plan);

// Whether the units of a chunk gather and reduce buckets.
bool gathers_by_unit(const Job& job, const Plan& plan);
// The plan, or one whose blocks have the same rows without buckets.
Plan without_buckets(const Job& job, Plan plan);
// Buckets that the units of a chunk gather and reduce; empty where they have none.
FsdpBuffers chunk_buffers(const Job& job, const Plan& plan, const ChunkLayout& chunk);

// Whether rows of the job's framework look at more of a plan than SeenByBlock has, or may.
bool rows_see_whole_plan(const Job& job);
SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind);

}  // namespace shardplan
