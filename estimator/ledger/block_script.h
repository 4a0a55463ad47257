// The allocations and frees of one block of one microbatch, in the order of its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/ledger/block_memory.h"

namespace shardplan {

// One allocation or free of a row of a block, by the row's index.
struct RowEvent {
  std::int64_t row = 0;
  bool allocates = false;
};

// A tensor of a row.
struct ScriptRow {
  std::int64_t bytes = 0;
  AllocationStream stream = AllocationStream::kCompute;
  bool is_first_product = false;  // may be its thread's first product
  bool is_handed_on = false;      // becomes one of the next block
  bool is_taken_over = false;     // was one of the block before
  bool is_added = false;          // to the output gradient
  bool follows_load = false;      // as large as what the routers send
  bool is_freed_in_use = false;   // of another stream, which may end late
  bool is_gradient = false;       // stays for the microbatches after
  bool is_made_once = false;      // by whichever step comes first, and kept
  bool stays = false;             // with a recomputed group
  bool is_plain = false;          // is allocated and freed as all others are
};

// What one kind of block does in forward, in a forward that keeps nothing, in backward, and in its
// weight gradient: at each step the rows born are allocated, then the rows that die are freed.
struct BlockScript {
  std::vector<ScriptRow> rows;
  std::vector<RowEvent> forward;
  std::vector<RowEvent> forward_unkept;
  std::vector<RowEvent> backward;
  std::vector<RowEvent> weight;
  std::int64_t output_gradient_row = -1;  // is there while a group replays
};

BlockScript script_of(const BlockMemory& block);

}  // namespace shardplan
