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

// What one kind of block does in forward, in a forward that keeps nothing, in backward, and in its
// weight gradient: at each step the rows born are allocated, then the rows that die are freed.
struct BlockScript {
  std::vector<std::int64_t> bytes;        // by row
  std::vector<AllocationStream> streams;  // by row
  std::vector<bool> is_first_product;     // by row: may be its thread's first product
  std::vector<bool> is_handed_on;         // by row: its tensor becomes one of the next block
  std::vector<bool> is_taken_over;        // by row: its tensor was one of the block before
  std::vector<bool> is_added;             // by row: to the output gradient
  std::vector<bool> follows_load;         // by row: as large as what the routers send
  std::vector<bool> is_freed_in_use;      // by row: of another stream, which may end late
  std::vector<bool> is_gradient;          // by row: stays for the microbatches after
  std::vector<bool> is_made_once;         // by row: by whichever step comes first, and kept
  std::vector<RowEvent> forward;
  std::vector<RowEvent> forward_unkept;
  std::vector<RowEvent> backward;
  std::vector<RowEvent> weight;
  std::vector<bool> stays;                // by row: stays with a recomputed group
  std::int64_t output_gradient_row = -1;  // is there while a group replays
};

BlockScript script_of(const BlockMemory& block);

}  // namespace shardplan
