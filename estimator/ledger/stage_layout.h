// What one pipeline rank holds, as runs of equal blocks: the form in which memory is summed.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/block_memory.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan {

struct BlockRun {
  BlockKind kind = BlockKind::kDenseLayer;
  std::int64_t count = 1;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

// What forward saves as one piece: a block, or a group of layers that full recompute replays.
struct Unit {
  std::vector<BlockRun> blocks;
  bool checkpointed = false;
  std::int64_t count = 1;  // equal units in a row
  friend bool operator==(const Unit&, const Unit&) = default;
};

struct ChunkLayout {
  std::vector<Unit> units;          // in forward order
  bool has_embedding_copy = false;  // a second copy of the embedding table, for head or MTP
  bool sends_output = false;        // a chunk follows on another rank
  std::int64_t first_layer = 0;     // of models whose layers vary (layers_vary); else 0
  friend bool operator==(const ChunkLayout&, const ChunkLayout&) = default;
};

// Which ends of the model a stage holds.
struct StageEnds {
  bool has_embedding = false;
  bool has_head = false;
  bool has_cast = false;              // of logits to fp32, with the head but in nanotron
  std::int64_t receiving_chunks = 0;  // chunks whose input comes from another chunk
  std::int64_t sending_chunks = 0;    // chunks whose output goes to another chunk
  friend bool operator==(const StageEnds&, const StageEnds&) = default;
};

struct StageLayout {
  std::int64_t pp_rank = 0;
  std::int64_t num_layers = 0;
  StageEnds ends;
  std::vector<ChunkLayout> chunks;  // by local chunk
};

StageLayout stage_layout(const Job& job, const Plan& plan, const LayerPartition& partition,
                         std::int64_t pp_rank);

// Blocks of that kind on the stage.
std::int64_t count_blocks(const StageLayout& stage, BlockKind kind);

}  // namespace shardplan
