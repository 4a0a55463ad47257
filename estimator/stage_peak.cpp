#include "estimator/stage_peak.h"

#include <algorithm>
#include <numeric>

#include "estimator/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kArenaMultiple = 2 * kMiB;

const BlockSummary& summary_of(const BlockSet& blocks, BlockKind kind) {
  return blocks[static_cast<std::size_t>(kind)].summary;
}

// A point inside one unit, relative to the unit's start.
struct UnitPoint {
  std::int64_t bytes = -1;
  std::size_t block = 0;
  std::int64_t blocks_before = 0;
  Step step = Step::kForwardInput;
  std::optional<BlockKind> entered = {};
};

// Whether the backward makes the gradients or finds them there.
enum class Gradients { kMade, kFound };

// What a block or unit leaves behind when its backward has passed.
template <class Bytes>
std::int64_t left_bytes(const Bytes& of, Gradients gradients) {
  return of.pending_bytes + (gradients == Gradients::kMade ? of.gradient_bytes : 0);
}

struct UnitPeaks {
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  std::int64_t gradient_bytes = 0;
  UnitPoint forward;
  UnitPoint last_output;  // its last forward step, without the block behind
  UnitPoint replay;
  UnitPoint backward;
  UnitPoint first_backward;
  UnitPoint weight;
};

void raise(UnitPoint& best, const UnitPoint& point) {
  if (point.bytes > best.bytes) {
    best = point;
  }
}

// The last forward step of a block together with the rows that it writes of the one behind it.
UnitPoint entering(UnitPoint output, const BlockSet& blocks, BlockKind before, BlockKind behind,
                   Pass pass = Pass::kForward) {
  const std::int64_t bytes = entry_bytes(blocks, pass, before, behind);
  output.bytes += bytes;
  output.entered = bytes > 0 ? std::optional(behind) : std::nullopt;
  return output;
}

// Where the blocks of a run and the run behind it meet. `output` is the last forward step of the
// run's last block, which every block before it holds `per_block` less than the one behind.
void raise_meetings(const std::vector<BlockRun>& runs, std::size_t i, const BlockSet& blocks,
                    const UnitPoint& output, std::int64_t per_block, UnitPoint& best) {
  const BlockKind kind = runs[i].kind;
  if (runs[i].count > 1) {
    UnitPoint inside = output;
    inside.bytes -= per_block;
    inside.blocks_before -= 1;
    raise(best, entering(inside, blocks, kind, kind));
  }
  if (i + 1 < runs.size()) {
    raise(best, entering(output, blocks, kind, runs[i + 1].kind));
  }
}

// Forward that saves: the last block of a run holds what all before it keep, so it wins its run.
// Returns the unit's last step.
UnitPoint walk_forward(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  std::int64_t kept = 0;
  UnitPoint output;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t before = runs[i].count - 1;
    kept += before * summary.kept_bytes;
    raise(best, {.bytes = kept + summary.forward.bytes,
                 .block = i,
                 .blocks_before = before,
                 .step = summary.forward.step});
    output = {.bytes = kept + summary.output_bytes,
              .block = i,
              .blocks_before = before,
              .step = kLastForward};
    raise_meetings(runs, i, blocks, output, summary.kept_bytes, best);
    kept += summary.kept_bytes;
  }
  return output;
}

// Forward again of a group, whose output's gradient waits. Its last block writes no output.
void walk_replay(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  std::int64_t kept = summary_of(blocks, runs.back().kind).output_gradient_bytes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const bool is_last = i + 1 == runs.size();
    const std::int64_t whole = runs[i].count - (is_last ? 1 : 0);  // blocks that run to their end
    if (whole > 0) {
      kept += (whole - 1) * summary.kept_bytes;
      raise(best, {.bytes = kept + summary.forward.bytes,
                   .block = i,
                   .blocks_before = whole - 1,
                   .step = summary.forward.step});
      const UnitPoint output{.bytes = kept + summary.output_bytes,
                             .block = i,
                             .blocks_before = whole - 1,
                             .step = kLastForward};
      const BlockKind behind = is_last ? runs[i].kind : runs[i + 1].kind;
      raise(best, entering(output, blocks, runs[i].kind, behind, Pass::kReplay));
      if (whole > 1 && !is_last) {
        UnitPoint inside = output;
        inside.bytes -= summary.kept_bytes;
        inside.blocks_before -= 1;
        raise(best, entering(inside, blocks, runs[i].kind, runs[i].kind, Pass::kReplay));
      }
      kept += summary.kept_bytes;
    }
    if (is_last) {
      raise(best, {.bytes = kept + summary.replay.bytes,
                   .block = i,
                   .blocks_before = whole,
                   .step = summary.replay.step});
    }
  }
}

// Weight gradients run in the order of the backward; what is pending of earlier blocks stays.
void walk_weight(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  std::int64_t pending = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t before = runs[i].count - 1;
    raise(best, {.bytes = pending + before * summary.pending_bytes + summary.weight.bytes,
                 .block = i,
                 .blocks_before = before,
                 .step = summary.weight.step});
    pending += runs[i].count * summary.pending_bytes;
  }
}

// Backward from the last block: kept bytes fall and pending bytes rise linearly along a run, so the
// first or the last block processed wins it.
void walk_backward(const std::vector<BlockRun>& runs, const BlockSet& blocks, Gradients gradients,
                   UnitPoint& best) {
  std::int64_t kept = 0;
  std::int64_t pending = 0;
  for (const BlockRun& run : runs) { kept += run.count * summary_of(blocks, run.kind).kept_bytes; }
  for (std::size_t i = runs.size(); i-- > 0;) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const StepPeak& peak =
        gradients == Gradients::kMade ? summary.first_backward : summary.backward;
    const std::int64_t left = left_bytes(summary, gradients);
    const std::int64_t others = runs[i].count - 1;
    kept -= runs[i].count * summary.kept_bytes;
    const std::int64_t running = kept + pending + peak.bytes;
    raise(best, {.bytes = running + others * summary.kept_bytes,
                 .block = i,
                 .blocks_before = others,
                 .step = peak.step});
    raise(best,
          {.bytes = running + others * left, .block = i, .blocks_before = 0, .step = peak.step});
    pending += runs[i].count * left;
  }
}

// Forward inside a group that will be recomputed: only the group's input and the running block.
// Returns the unit's last step.
UnitPoint walk_unkept(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  const BlockSummary& front = summary_of(blocks, runs.front().kind);
  raise(best, {.bytes = front.forward_first.bytes, .step = front.forward_first.step});
  UnitPoint output{.bytes = front.output_first_bytes, .step = kLastForward};
  BlockKind before = runs.front().kind;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t others = i == 0 ? runs[i].count - 1 : runs[i].count;
    for (std::int64_t block = 0; block < std::min<std::int64_t>(others, 2); ++block) {
      // The second of equal blocks meets another before it; all behind it are like it.
      raise(best, entering(output, blocks, before, runs[i].kind));
      before = runs[i].kind;
      const std::int64_t blocks_before =
          block == 0 && others > 1 ? runs[i].count - others : runs[i].count - 1;
      output = {.bytes = front.input_bytes + summary.output_unkept_bytes,
                .block = i,
                .blocks_before = blocks_before,
                .step = kLastForward};
      raise(best, {.bytes = front.input_bytes + summary.forward_unkept.bytes,
                   .block = i,
                   .blocks_before = blocks_before,
                   .step = summary.forward_unkept.step});
    }
  }
  return output;
}

UnitPeaks unit_peaks(const Unit& unit, const BlockSet& blocks) {
  UnitPeaks peaks;
  for (const BlockRun& run : unit.blocks) {
    peaks.kept_bytes += run.count * summary_of(blocks, run.kind).kept_bytes;
    peaks.pending_bytes += run.count * summary_of(blocks, run.kind).pending_bytes;
    peaks.gradient_bytes += run.count * summary_of(blocks, run.kind).gradient_bytes;
  }
  walk_backward(unit.blocks, blocks, Gradients::kFound, peaks.backward);
  walk_backward(unit.blocks, blocks, Gradients::kMade, peaks.first_backward);
  walk_weight(unit.blocks, blocks, peaks.weight);
  if (!unit.checkpointed) {
    peaks.last_output = walk_forward(unit.blocks, blocks, peaks.forward);
    return peaks;
  }
  peaks.kept_bytes = summary_of(blocks, unit.blocks.front().kind).input_bytes;
  peaks.last_output = walk_unkept(unit.blocks, blocks, peaks.forward);
  walk_replay(unit.blocks, blocks, peaks.replay);
  return peaks;
}

// What a unit needs of the frame of a static arena. A recomputed group keeps everything but its
// input there: in forward one block at a time, the inputs of inner blocks taking turns in two
// places; in backward all blocks and their inputs.
// `entry` is held in forward for the end of the chunk.
std::int64_t frame_bytes(const Unit& unit, const BlockSet& blocks, std::int64_t entry) {
  if (!unit.checkpointed) {
    const FrameBytes& frame = summary_of(blocks, unit.blocks.front().kind).frame;
    return std::max(frame.forward + entry, frame.backward);
  }
  std::int64_t num_blocks = 0;
  std::int64_t one_forward = 0;
  std::int64_t one_backward = 0;
  std::int64_t held = 0;
  std::int64_t most = 0;
  for (const BlockRun& run : unit.blocks) {
    const BlockSummary& summary = summary_of(blocks, run.kind);
    one_forward = std::max(one_forward, summary.frame.forward_unkept);
    one_backward = std::max(one_backward, summary.frame.backward);
    num_blocks += run.count;
    const std::int64_t kept = summary.kept_bytes - summary.kept_pending_bytes;  // on the frame
    held += run.count * kept;
    // The last block of the run that runs to its end holds its successor's input, too.
    const bool is_last = &run == &unit.blocks.back();
    const BlockSummary& behind = is_last ? summary : summary_of(blocks, (&run + 1)->kind);
    if (!is_last || run.count > 1) {
      const std::int64_t inputs =
          (is_last ? 0 : behind.input_bytes) - (is_last ? kept - summary.input_bytes : 0);
      most = std::max(most, held + inputs + summary.frame.forward);
    }
  }
  const BlockSummary& front = summary_of(blocks, unit.blocks.front().kind);
  const BlockSummary& last = summary_of(blocks, unit.blocks.back().kind);
  most = std::max(most, held + std::max(last.frame.replay, one_backward)) - front.input_bytes;
  const std::int64_t turns = std::min<std::int64_t>(2, num_blocks - 1) * front.input_bytes;
  return std::max(entry + turns + one_forward, most);
}

void raise(ChunkPoint& best, std::int64_t around_bytes, const UnitPoint& point, std::size_t unit,
           std::int64_t units_before) {
  if (point.bytes >= 0 && around_bytes + point.bytes > best.bytes) {
    best = {.bytes = around_bytes + point.bytes,
            .unit = unit,
            .units_before = units_before,
            .block = point.block,
            .blocks_before = point.blocks_before,
            .step = point.step,
            .entered = point.entered};
  }
}

bool is_head(const Unit& unit) {
  return unit.blocks.front().kind == BlockKind::kHead;
}

using ChunkPoints = std::array<ChunkPoint, kNumMoments>;

ChunkPoint& at(ChunkPoints& points, MomentKind moment) {
  return points[static_cast<std::size_t>(moment)];
}

// Backward and replay, from the last unit to the first: kept bytes fall and what the units behind
// leave rises linearly along a run.
void find_backward(const ChunkLayout& chunk, std::span<const UnitPeaks> units, Gradients gradients,
                   ChunkPoints& points) {
  std::int64_t kept = 0;
  std::int64_t left_after = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    left_after += chunk.units[i].count * left_bytes(units[i], gradients);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const UnitPoint& running = gradients == Gradients::kMade ? unit.first_backward : unit.backward;
    const std::int64_t left = left_bytes(unit, gradients);
    const std::int64_t others = chunk.units[i].count - 1;
    left_after -= chunk.units[i].count * left;
    const std::int64_t first = kept + others * unit.kept_bytes + left_after;
    const std::int64_t last = kept + others * left + left_after;
    ChunkPoint& backward =
        at(points, is_head(chunk.units[i]) ? MomentKind::kLossBackward : MomentKind::kBackward);
    raise(backward, first, running, i, others);
    raise(backward, last, running, i, 0);
    raise(at(points, MomentKind::kReplay), first, unit.replay, i, others);
    raise(at(points, MomentKind::kReplay), last, unit.replay, i, 0);
    kept += chunk.units[i].count * unit.kept_bytes;
  }
}

void raise_in_action(StagePoint& best, std::int64_t bytes, std::size_t state,
                     const ChunkPoint& point) {
  if (point.bytes >= 0 && bytes + point.bytes > best.bytes) {
    best = {.bytes = bytes + point.bytes, .state = state, .point = point};
  }
}

std::span<const MomentKind> moments_of(ActionKind action) {
  static constexpr std::array kForward = {MomentKind::kForward, MomentKind::kLossForward};
  static constexpr std::array kBackward = {MomentKind::kReplay, MomentKind::kBackward,
                                           MomentKind::kLossBackward};
  static constexpr std::array kWeight = {MomentKind::kWeight};
  switch (action) {
    case ActionKind::kForward: return kForward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput: return kBackward;
    case ActionKind::kBackwardWeight: return kWeight;
  }
  return {};
}

// Slots of a chunk: what one microbatch keeps, by how long.
void add_slot_bytes(ChunkPeaks& peaks, const Unit& unit, const UnitPeaks& bytes,
                    const BlockSet& blocks) {
  std::int64_t both = 0;
  std::int64_t passing = 0;
  for (const BlockRun& run : unit.blocks) {
    passing += run.count * summary_of(blocks, run.kind).passing_bytes;
    both += run.count * summary_of(blocks, run.kind).kept_pending_bytes;
  }
  // A group that is recomputed writes the inputs of its products in backward.
  const std::int64_t inputs = unit.checkpointed ? 0 : both;
  peaks.saved_slot_bytes += unit.count * (bytes.kept_bytes - inputs);
  peaks.input_slot_bytes += unit.count * inputs;
  peaks.pending_slot_bytes += unit.count * (bytes.pending_bytes + passing - inputs);
}

// The gradient that the head's chunk takes in forward stays where the last layer's weight gradient
// finds it; the first chunk sends no gradient.
void settle_ends(ChunkPeaks& peaks, const ChunkLayout& chunk, const BlockSet& blocks) {
  if (peaks.pending_bytes == 0) {
    return;
  }
  if (is_head(chunk.units.back())) {
    const std::int64_t gradient = summary_of(blocks, BlockKind::kHead).kept_bytes;
    peaks.saved_slot_bytes -= gradient;
    peaks.input_slot_bytes += gradient;
    peaks.pending_slot_bytes -= gradient;
  }
  if (chunk.units.front().blocks.front().kind == BlockKind::kEmbedding) {
    const auto place = std::ranges::find(kFixedPlaces, Place::kGradientBuffers);
    peaks.fixed_bytes[static_cast<std::size_t>(place - kFixedPlaces.begin())] = 0;
  }
}

// Rings of equal slots, one for every way of staying: the running microbatch has a slot of its own.
std::int64_t ring_bytes(std::span<const ChunkPeaks> chunks,
                        std::span<const InFlightState> schedule) {
  std::array<std::int64_t, 3> slot{};
  for (const ChunkPeaks& chunk : chunks) {
    slot[0] = std::max(slot[0], chunk.saved_slot_bytes);
    slot[1] = std::max(slot[1], chunk.input_slot_bytes);
    slot[2] = std::max(slot[2], chunk.pending_slot_bytes);
  }
  std::array<std::int64_t, 3> slots{};
  for (const InFlightState& in_flight : schedule) {
    const std::int64_t saved =
        std::accumulate(in_flight.saved.begin(), in_flight.saved.end(), std::int64_t{0});
    const std::int64_t pending = std::accumulate(in_flight.pending_weight.begin(),
                                                 in_flight.pending_weight.end(), std::int64_t{0});
    const bool is_weight = in_flight.action == ActionKind::kBackwardWeight;
    const bool leaves_pending = is_weight || in_flight.action == ActionKind::kBackwardInput;
    slots[0] = std::max(slots[0], saved + (is_weight ? 0 : 1));
    slots[1] = std::max(slots[1], saved + pending + 1);
    slots[2] = std::max(slots[2], pending + (leaves_pending ? 1 : 0));
  }
  return slot[0] * slots[0] + slot[1] * slots[1] + slot[2] * slots[2];
}

// Static arenas: what lives between steps lies in one; the other is rings of slots, fixed buffers
// and one frame. Both are whole multiples of 2 MiB.
void set_arenas(StagePeaks& peaks, const StateBytes& state, std::span<const ChunkPeaks> chunks,
                std::span<const InFlightState> schedule) {
  std::int64_t frame = state.frame;
  std::array<std::int64_t, kFixedPlaces.size()> fixed{};
  for (const ChunkPeaks& chunk : chunks) {
    frame = std::max(frame, chunk.frame_bytes);
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      fixed[i] = std::max(fixed[i], chunk.fixed_bytes[i]);
    }
  }
  const std::int64_t idle = state.alive[static_cast<std::size_t>(Phase::kIdle)];
  std::int64_t beyond = 0;  // buffers of the state that do not stay between steps
  for (std::int64_t phase = 0; phase < kNumPhases; ++phase) {
    const bool has_frame = static_cast<Phase>(phase) == Phase::kGradientNorm;
    beyond = std::max(beyond, state.alive[static_cast<std::size_t>(phase)] - idle -
                                  (has_frame ? state.frame : 0));
  }
  peaks.fixed_bytes = std::accumulate(fixed.begin(), fixed.end(), beyond);
  peaks.slots_bytes = ring_bytes(chunks, schedule);
  // At least what is alive, where plans have rows but no program yet.
  peaks.frame_bytes =
      std::max(frame, peaks.peak_bytes - idle - peaks.fixed_bytes - peaks.slots_bytes);
  peaks.persistent_arena_bytes = round_up(idle, kArenaMultiple);
  peaks.dynamic_arena_bytes =
      round_up(peaks.fixed_bytes + peaks.slots_bytes + peaks.frame_bytes, kArenaMultiple);
}

}  // namespace

// A delayed weight gradient counts as made: all gradients of its chunk at once.
bool holds_gradients(const InFlightState& state, std::size_t chunk) {
  const bool is_made_now =
      state.action == ActionKind::kBackwardWeight && static_cast<std::size_t>(state.chunk) == chunk;
  return state.has_gradients[chunk] > 0 || is_made_now;
}

bool makes_gradients(const InFlightState& state) {
  return state.action == ActionKind::kBackward &&
         state.has_gradients[static_cast<std::size_t>(state.chunk)] == 0;
}

std::int64_t reserved_upper_bytes(AllocatorKind kind, const StateBytes& state,
                                  std::int64_t allocated_bytes) {
  constexpr std::int64_t kSegments = 256 * kMiB;  // unfilled 2 and 20 MiB segments
  if (kind == AllocatorKind::kStaticArenas) {
    return allocated_bytes;
  }
  const std::int64_t between_steps = state.alive[static_cast<std::size_t>(Phase::kIdle)];
  const std::int64_t dynamic = allocated_bytes - between_steps + state.remade;
  return allocated_bytes + state.side_streams + state.start_up_only + between_steps / 16 + dynamic +
         dynamic / 2 + kSegments;
}

Phase phase_of(MomentKind moment) {
  switch (moment) {
    case MomentKind::kStartUp: return Phase::kStartUp;
    case MomentKind::kForward:
    case MomentKind::kLossForward: return Phase::kForward;
    case MomentKind::kReplay:
    case MomentKind::kBackward:
    case MomentKind::kLossBackward:
    case MomentKind::kWeight: return Phase::kBackward;
    case MomentKind::kReduction: return Phase::kReduction;
    case MomentKind::kOptimizer: return Phase::kOptimizer;
    case MomentKind::kParameterGather: return Phase::kParameterGather;
  }
  return Phase::kIdle;
}

namespace {

// The last forward steps of equal units in a row and of the last one, with what they write of the
// blocks behind them.
void raise_outputs(ChunkPoint& best, const ChunkLayout& chunk, std::size_t i,
                   const BlockSet& blocks, const UnitPeaks& unit, std::int64_t kept) {
  const Unit& running = chunk.units[i];
  const BlockKind last = running.blocks.back().kind;
  const std::int64_t others = running.count - 1;
  if (others > 0) {
    raise(best, kept + (others - 1) * unit.kept_bytes,
          entering(unit.last_output, blocks, last, running.blocks.front().kind), i, others - 1);
  }
  if (i + 1 < chunk.units.size()) {
    raise(best, kept + others * unit.kept_bytes,
          entering(unit.last_output, blocks, last, chunk.units[i + 1].blocks.front().kind), i,
          others);
  }
}

}  // namespace

ChunkPeaks chunk_peaks(const ChunkLayout& chunk, const BlockSet& blocks) {
  ChunkPeaks peaks;
  if (chunk.units.empty()) {
    return peaks;
  }
  std::vector<UnitPeaks> units;
  const BlockRun& end = chunk.units.back().blocks.front();
  for (const Unit& unit : chunk.units) {
    units.push_back(unit_peaks(unit, blocks));
    const std::int64_t entry_frame =
        &unit == &chunk.units.back() ? 0 : summary_of(blocks, end.kind).frame.entry;
    peaks.kept_bytes += unit.count * units.back().kept_bytes;
    peaks.pending_bytes += unit.count * units.back().pending_bytes;
    peaks.gradient_bytes += unit.count * units.back().gradient_bytes;
    add_slot_bytes(peaks, unit, units.back(), blocks);
    peaks.frame_bytes = std::max(peaks.frame_bytes, frame_bytes(unit, blocks, entry_frame));
    for (const BlockRun& run : unit.blocks) {
      const BlockSummary& summary = summary_of(blocks, run.kind);
      for (std::size_t i = 0; i < peaks.fixed_bytes.size(); ++i) {
        peaks.fixed_bytes[i] = std::max(peaks.fixed_bytes[i], summary.fixed_bytes[i]);
      }
    }
  }
  settle_ends(peaks, chunk, blocks);
  std::int64_t kept = 0;
  std::int64_t pending_before = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const std::int64_t count = chunk.units[i].count;
    const std::int64_t others = count - 1;
    const bool head = is_head(chunk.units[i]);
    ChunkPoint& forward = at(peaks.points, head ? MomentKind::kLossForward : MomentKind::kForward);
    raise(forward, kept + others * unit.kept_bytes, unit.forward, i, others);
    raise_outputs(forward, chunk, i, blocks, unit, kept);
    raise(at(peaks.points, MomentKind::kWeight), pending_before + others * unit.pending_bytes,
          unit.weight, i, others);
    kept += count * unit.kept_bytes;
    pending_before += count * unit.pending_bytes;
  }
  find_backward(chunk, units, Gradients::kFound, peaks.points);
  find_backward(chunk, units, Gradients::kMade, peaks.first_points);
  return peaks;
}

StagePeaks stage_peaks(const Job& job, const StateBytes& state, std::span<const ChunkPeaks> chunks,
                       std::span<const InFlightState> schedule) {
  StagePeaks peaks;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const InFlightState& now = schedule[i];
    std::int64_t in_flight = 0;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      in_flight += now.saved[chunk] * chunks[chunk].kept_bytes +
                   now.pending_weight[chunk] * chunks[chunk].pending_bytes +
                   (holds_gradients(now, chunk) ? chunks[chunk].gradient_bytes : 0);
    }
    const ChunkPeaks& running = chunks[static_cast<std::size_t>(now.chunk)];
    const ChunkPoints& points = makes_gradients(now) ? running.first_points : running.points;
    for (const MomentKind moment : moments_of(now.action)) {
      const std::size_t index = static_cast<std::size_t>(moment);
      const std::int64_t base = state.alive[static_cast<std::size_t>(phase_of(moment))];
      raise_in_action(peaks.moments[index], base + in_flight, i, points[index]);
    }
  }
  std::int64_t first_step = 0;
  for (const StagePoint& point : peaks.moments) {
    first_step = std::max(first_step, point.bytes - state.made_by_first_step);
  }
  const auto set_between_actions = [&peaks, &state](MomentKind moment) {
    const std::int64_t bytes = state.alive[static_cast<std::size_t>(phase_of(moment))];
    peaks.moments[static_cast<std::size_t>(moment)].bytes = bytes;
    return bytes;
  };
  // Start-up is before the first step; the optimizer's state is there from its step on.
  set_between_actions(MomentKind::kStartUp);
  first_step =
      std::max({first_step, set_between_actions(MomentKind::kReduction) - state.made_by_first_step,
                set_between_actions(MomentKind::kOptimizer),
                set_between_actions(MomentKind::kParameterGather)});
  std::int64_t steady = 0;
  for (std::int64_t i = 0; i < kNumMoments; ++i) {
    const std::int64_t bytes = peaks.moments[static_cast<std::size_t>(i)].bytes;
    steady = static_cast<MomentKind>(i) == MomentKind::kStartUp ? steady : std::max(steady, bytes);
    if (bytes > peaks.peak_bytes) {
      peaks.peak_bytes = bytes;
      peaks.peak = static_cast<MomentKind>(i);
    }
  }
  if (job.profile.allocator == AllocatorKind::kStaticArenas) {
    set_arenas(peaks, state, chunks, schedule);
    peaks.arena_slack_bytes =
        peaks.persistent_arena_bytes + peaks.dynamic_arena_bytes - peaks.peak_bytes;
    first_step = peaks.peak_bytes;
    steady = peaks.peak_bytes;
  }
  peaks.allocated_bytes = peaks.peak_bytes + peaks.arena_slack_bytes;
  peaks.first_step_bytes = first_step + peaks.arena_slack_bytes;
  peaks.steady_bytes = steady + peaks.arena_slack_bytes;
  return peaks;
}

}  // namespace shardplan
