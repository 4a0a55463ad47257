// A peak point written out as blocks in their states; the rows of an answer are read from it.

#include "estimator/ledger/stage_peak.h"
#include "estimator/plan/in_flight.h"

namespace shardplan {
namespace {

enum class Held { kKept, kPending, kGradients, kGathered, kReduced };

BlockState state_of(Held held) {
  switch (held) {
    case Held::kKept: return BlockState::kKept;
    case Held::kPending: return BlockState::kPending;
    case Held::kGathered: return BlockState::kGathered;
    case Held::kReduced: return BlockState::kReduced;
    case Held::kGradients: break;
  }
  return BlockState::kGradients;
}

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
      add(run.kind, state_of(held), Step::kForwardInput, run.count * copies);
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

// What blocks leave behind when their backward has passed.
std::vector<Held> left_by(const InFlightState& in_flight) {
  std::vector<Held> left = {Held::kPending};
  if (makes_gradients(in_flight)) {
    left.push_back(Held::kGradients);
  }
  if (in_flight.gathers) {
    left.push_back(Held::kGathered);
  }
  return left;
}

BlockState running_state(const InFlightState& in_flight, MomentKind moment) {
  return moment == MomentKind::kReplay ? BlockState::kRunningReplay
         : makes_gradients(in_flight)  ? BlockState::kRunning
         : in_flight.gathers           ? BlockState::kRunningGathering
                                       : BlockState::kRunningAgain;
}

// Blocks of the running unit.
void add_running_unit(AliveList& alive, const Unit& unit, MomentKind moment,
                      const ChunkPoint& point, const InFlightState& in_flight) {
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
  alive.add(running.kind, running_state(in_flight, moment), point.step, 1);
  if (moment == MomentKind::kReplay) {
    alive.add_unit(unit, Held::kGathered, in_flight.gathers ? 1 : 0);
    alive.add(unit.blocks.back().kind, BlockState::kReplaying, Step::kBackwardOutput, 1);
  }
  if (moment == MomentKind::kBackward || moment == MomentKind::kLossBackward) {
    const bool is_last =
        point.block + 1 == unit.blocks.size() && point.blocks_before + 1 == running.count;
    alive.add(unit.blocks.back().kind, is_last ? BlockState::kGroupAt : BlockState::kGroup,
              point.step, unit.checkpointed ? 1 : 0);
    for (const Held held : left_by(in_flight)) {
      alive.add(running.kind, state_of(held), Step::kForwardInput,
                running.count - 1 - point.blocks_before);
      for (std::size_t i = point.block + 1; i < unit.blocks.size(); ++i) {
        alive.add(unit.blocks[i].kind, state_of(held), Step::kForwardInput, unit.blocks[i].count);
      }
    }
  }
}

// Blocks of the chunk whose gradients are being reduced, from the first to the last.
void add_reduction(AliveList& alive, const ChunkLayout& chunk, const ChunkPoint& point) {
  for (std::size_t u = 0; u < chunk.units.size(); ++u) {
    const Unit& unit = chunk.units[u];
    const bool runs = u == point.unit;
    const std::int64_t units_done = u < point.unit ? unit.count : runs ? point.units_before : 0;
    for (std::size_t b = 0; b < unit.blocks.size(); ++b) {
      const BlockRun& run = unit.blocks[b];
      const std::int64_t running = runs && b == point.block ? 1 : 0;
      const std::int64_t blocks_done = running > 0               ? point.blocks_before
                                       : runs && b < point.block ? run.count
                                                                 : 0;
      const std::int64_t done = units_done * run.count + blocks_done;
      const std::int64_t behind = unit.count * run.count - done - running;
      alive.add(run.kind, BlockState::kReduced, Step::kWeight, done);
      alive.add(run.kind, BlockState::kReducing, Step::kWeight, running);
      alive.add(run.kind, BlockState::kGradients, Step::kWeight, running + behind);
      alive.add(run.kind, BlockState::kGathered, Step::kWeight, behind);
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
    alive.add_chunk(stage.chunks[chunk], Held::kGradients,
                    holds_gradients(in_flight, chunk) ? 1 : 0);
    alive.add_chunk(stage.chunks[chunk], Held::kGathered,
                    holds_parameters(in_flight, chunk) ? 1 : 0);
    alive.add_chunk(stage.chunks[chunk], Held::kReduced, holds_reduced(in_flight, chunk) ? 1 : 0);
  }
  const ChunkLayout& running = stage.chunks[static_cast<std::size_t>(in_flight.chunk)];
  if (moment == MomentKind::kReduction) {
    add_reduction(alive, running, point);
    return alive.blocks;
  }
  const Held before = moment == MomentKind::kWeight ? Held::kPending : Held::kKept;
  for (std::size_t i = 0; i < point.unit; ++i) {
    alive.add_unit(running.units[i], before, running.units[i].count);
  }
  const Unit& unit = running.units[point.unit];
  alive.add_unit(unit, before, point.units_before);
  add_running_unit(alive, unit, moment, point, in_flight);
  if (point.entered) {
    const Pass pass = moment == MomentKind::kReplay ? Pass::kReplay : Pass::kForward;
    alive.add(*point.entered, BlockState::kRunning,
              entry_step(pass, unit.blocks[point.block].kind, *point.entered), 1);
  }
  if (!runs_forward(moment) && moment != MomentKind::kWeight) {
    for (const Held held : left_by(in_flight)) {
      alive.add_unit(unit, held, unit.count - 1 - point.units_before);
      for (std::size_t i = point.unit + 1; i < running.units.size(); ++i) {
        alive.add_unit(running.units[i], held, running.units[i].count);
      }
    }
  }
  return alive.blocks;
}

}  // namespace shardplan
