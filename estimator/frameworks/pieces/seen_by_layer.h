// What rows of blocks look at where only layers have parts that are recomputed, only mixtures see
// experts, and context parallelism is attention's.
#pragma once

#include "estimator/ledger/block_memory.h"
#include "estimator/ledger/stage_layout.h"

namespace shardplan {

bool is_layer(BlockKind kind);
bool is_mixture(const Job& job, BlockKind kind);
// Layers and prediction modules of a stage that have experts.
std::int64_t count_mixtures(const Job& job, const StageLayout& stage);

// Full recomputation replays whole blocks, whose rows stay as they are; selective recomputation
// names parts of layers. `norms`: those that stand alone; `mlp_in_mixtures`: a norm that either
// kind of FFN has asks for it.
SeenByBlock seen_by_layer(const Job& job, const Plan& plan, BlockKind kind, SeparateNorms norms,
                          bool mlp_in_mixtures);

}  // namespace shardplan
