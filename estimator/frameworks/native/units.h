// Data parallelism of the native trainer: the units whose gradients are reduced and whose weights
// are gathered together, and under ZeRO 2 and 3 the two cells that whole units take turns in.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"

namespace shardplan::native {

struct NativeUnit {
  std::int64_t dense = 0;  // elements of its flat buffers, padding included
  std::int64_t expert = 0;
  bool in_second_cell = false;
};

// Embedding, every layer, head with final norm; one unit where embedding and head are one table.
std::vector<NativeUnit> native_units(const Job& job, const Plan& plan, const ChunkLayout& chunk);

// Whether a group of this many shards has a flat buffer for every unit, or one for the whole chunk.
bool divides_units(std::int64_t shard);

}  // namespace shardplan::native
