// A peak point written out as blocks in their states; the rows of an answer are read from it.
#include <algorithm>

#include "estimator/stage_peak.h"

namespace shardplan {
namespace {

enum class Held { kKept, kPending };

class AliveList {
 public:
  void add(BlockKind kind, BlockState state, Step step, std::int64_t copies) {
    if (copies > 0) {
      blocks.push_back({.kind = kind, .state = state, .step = step, .copies = copies});
    }
  }
  // `copies` whole units, kept or pending.
  void add_unit(const Unit& unit, Held held, std::int64_t copies) {
    if (held == Held::kKept && unit.checkpointed) {
      add(unit.blocks.front().kind, BlockState::kCheckpointed, Step::kForwardInput, copies);
      return;
    }
    for (const BlockRun& run : unit.blocks) {
      add(run.kind, held == Held::kKept ? BlockState::kKept : BlockState::kPending,
          Step::kForwardInput, run.count * copies);
    }
  }
  void add_chunk(const ChunkLayout& chunk, Held held, std::int64_t copies) {
    for (const Unit& unit : chunk.units) { add_unit(unit, held, unit.count * copies); }
  }

  std::vector<AliveBlocks> blocks;
};

bool runs_forward(MomentKind moment) {
  return moment == MomentKind::kForward || moment == MomentKind::kLossForward;
}

// Blocks of the running unit.
void add_running_unit(AliveList& alive, const Unit& unit, MomentKind moment,
                      const ChunkPoint& point) {
  const BlockRun& running = unit.blocks[point.block];
  if (unit.checkpointed && runs_forward(moment)) {
    const bool is_first = point.block == 0 && point.blocks_before == 0;
    alive.add(unit.blocks.front().kind, BlockState::kCheckpointed, Step::kForwardInput,
              is_first ? 0 : 1);
    alive.add(running.kind, is_first ? BlockState::kRunningFirst : BlockState::kRunningUnkept,
              point.step, 1);
    return;
  }
  const BlockState before =
      moment == MomentKind::kWeight ? BlockState::kPending : BlockState::kKept;
  for (std::size_t i = 0; i < point.block; ++i) {
    alive.add(unit.blocks[i].kind, before, Step::kForwardInput, unit.blocks[i].count);
  }
  alive.add(running.kind, before, Step::kForwardInput, point.blocks_before);
  alive.add(running.kind, BlockState::kRunning, point.step, 1);
  if (moment == MomentKind::kReplay) {
    alive.add(unit.blocks.back().kind, BlockState::kReplaying, Step::kBackwardOutput, 1);
  }
  if (moment == MomentKind::kBackward || moment == MomentKind::kLossBackward) {
    alive.add(running.kind, BlockState::kPending, Step::kForwardInput,
              running.count - 1 - point.blocks_before);
    for (std::size_t i = point.block + 1; i < unit.blocks.size(); ++i) {
      alive.add(unit.blocks[i].kind, BlockState::kPending, Step::kForwardInput,
                unit.blocks[i].count);
    }
  }
}

}  // namespace

std::vector<AliveBlocks> alive_blocks(const StageLayout& stage, const InFlightState& in_flight,
                                      MomentKind moment, const ChunkPoint& point) {
  AliveList alive;
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    alive.add_chunk(stage.chunks[chunk], Held::kKept, in_flight.saved[chunk]);
    alive.add_chunk(stage.chunks[chunk], Held::kPending, in_flight.pending_weight[chunk]);
  }
  const ChunkLayout& running = stage.chunks[static_cast<std::size_t>(in_flight.chunk)];
  const Held before = moment == MomentKind::kWeight ? Held::kPending : Held::kKept;
  for (std::size_t i = 0; i < point.unit; ++i) {
    alive.add_unit(running.units[i], before, running.units[i].count);
  }
  const Unit& unit = running.units[point.unit];
  alive.add_unit(unit, before, point.units_before);
  add_running_unit(alive, unit, moment, point);
  if (point.entered) {
    const Pass pass = moment == MomentKind::kReplay ? Pass::kReplay : Pass::kForward;
    alive.add(*point.entered, BlockState::kRunning,
              entry_step(pass, unit.blocks[point.block].kind, *point.entered), 1);
  }
  if (!runs_forward(moment) && moment != MomentKind::kWeight) {
    alive.add_unit(unit, Held::kPending, unit.count - 1 - point.units_before);
    for (std::size_t i = point.unit + 1; i < running.units.size(); ++i) {
      alive.add_unit(running.units[i], Held::kPending, running.units[i].count);
    }
  }
  return alive.blocks;
}

}  // namespace shardplan
