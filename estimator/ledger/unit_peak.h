// The largest bytes inside one unit of a chunk: a block by itself, or a group of layers that is
// recomputed as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "estimator/ledger/stage_layout.h"

namespace shardplan {

// A point inside one unit, relative to the unit's start.
struct UnitPoint {
  std::int64_t bytes = -1;
  std::size_t block = 0;
  std::int64_t blocks_before = 0;
  Step step = Step::kForwardInput;
  std::optional<BlockKind> entered = {};
};

// What a backward finds there: neither gradients nor gathered parameters (that of a profile that
// has none of them among its blocks makes and gathers nothing), gradients alone, or all.
enum class Finds { kNothing, kGradients, kAll };

// What a block or unit leaves behind when its backward has passed.
template <class Bytes>
constexpr std::int64_t left_bytes(const Bytes& of, Finds finds) {
  return of.pending_bytes + (finds == Finds::kNothing ? of.gradient_bytes : 0) +
         (finds == Finds::kAll ? 0 : of.regathered_bytes);
}

struct UnitPeaks {
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t regathered_bytes = 0;
  std::int64_t reduced_bytes = 0;
  UnitPoint forward;
  UnitPoint last_output;  // its last forward step, without the block behind
  UnitPoint replay;
  UnitPoint backward;
  UnitPoint first_backward;
  UnitPoint gathering_backward;
  UnitPoint weight;
  UnitPoint reduction;
};

UnitPeaks unit_peaks(const Unit& unit, const BlockSummaries& blocks);

// The same bytes without the places at which they occur, where blocks do not write each other's
// rows (so that the last forward step is a step like others): what search sums. A cache line.
struct UnitBytes {
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t forward = -1;
  std::int64_t replay = -1;
  std::int64_t backward = -1;
  std::int64_t first_backward = -1;
  std::int64_t weight = -1;
};
UnitBytes unit_bytes(const UnitPeaks& peaks);

// The last forward step of a block together with the rows that it writes of the one behind it.
UnitPoint entering(UnitPoint output, const BlockSummaries& blocks, BlockKind before,
                   BlockKind behind, Pass pass = Pass::kForward);

// What a unit needs of the frame of a static arena. A recomputed group keeps everything but its
// input there: in forward one block at a time, the inputs of inner blocks taking turns in two
// places; in backward all blocks and their inputs.
// `entry` is held in forward for the end of the chunk.
std::int64_t frame_bytes(const Unit& unit, const BlockSummaries& blocks, std::int64_t entry);

constexpr const BlockSummary& summary_of(const BlockSummaries& blocks, BlockKind kind) {
  return blocks[static_cast<std::size_t>(kind)];
}

}  // namespace shardplan
