#include "estimator/stage_peak.h"

#include <algorithm>

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
};

struct UnitPeaks {
  std::int64_t kept_bytes = 0;
  std::int64_t pending_bytes = 0;
  UnitPoint forward;
  UnitPoint replay;
  UnitPoint backward;
  UnitPoint weight;
};

void raise(UnitPoint& best, std::int64_t bytes, std::size_t block, std::int64_t before, Step step) {
  if (bytes > best.bytes) {
    best = {.bytes = bytes, .block = block, .blocks_before = before, .step = step};
  }
}

// Forward that saves: the last block of a run holds what all before it keep, so it wins its run.
void walk_forward(const std::vector<BlockRun>& runs, const BlockSet& blocks,
                  std::int64_t extra_bytes, UnitPoint& best) {
  std::int64_t kept = extra_bytes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t before = runs[i].count - 1;
    raise(best, kept + before * summary.kept_bytes + summary.forward.bytes, i, before,
          summary.forward.step);
    kept += runs[i].count * summary.kept_bytes;
  }
}

// Weight gradients run in the order of the backward; what is pending of earlier blocks stays.
void walk_weight(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  std::int64_t pending = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t before = runs[i].count - 1;
    raise(best, pending + before * summary.pending_bytes + summary.weight.bytes, i, before,
          summary.weight.step);
    pending += runs[i].count * summary.pending_bytes;
  }
}

// Backward from the last block: kept bytes fall and pending bytes rise linearly along a run, so the
// first or the last block processed wins it.
void walk_backward(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  std::int64_t kept = 0;
  std::int64_t pending = 0;
  for (const BlockRun& run : runs) { kept += run.count * summary_of(blocks, run.kind).kept_bytes; }
  for (std::size_t i = runs.size(); i-- > 0;) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t others = runs[i].count - 1;
    kept -= runs[i].count * summary.kept_bytes;
    raise(best, kept + others * summary.kept_bytes + summary.backward.bytes + pending, i, others,
          summary.backward.step);
    raise(best, kept + summary.backward.bytes + others * summary.pending_bytes + pending, i, 0,
          summary.backward.step);
    pending += runs[i].count * summary.pending_bytes;
  }
}

// Forward inside a group that will be recomputed: only the group's input and the running block.
void walk_unkept(const std::vector<BlockRun>& runs, const BlockSet& blocks, UnitPoint& best) {
  const std::int64_t input = summary_of(blocks, runs.front().kind).input_bytes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t before = runs[i].count - 1;
    const bool is_first = i == 0 && before == 0;
    raise(best, summary.forward_unkept.bytes + (is_first ? 0 : input), i, before,
          summary.forward_unkept.step);
  }
}

UnitPeaks unit_peaks(const Unit& unit, const BlockSet& blocks) {
  UnitPeaks peaks;
  for (const BlockRun& run : unit.blocks) {
    peaks.kept_bytes += run.count * summary_of(blocks, run.kind).kept_bytes;
    peaks.pending_bytes += run.count * summary_of(blocks, run.kind).pending_bytes;
  }
  walk_backward(unit.blocks, blocks, peaks.backward);
  walk_weight(unit.blocks, blocks, peaks.weight);
  if (!unit.checkpointed) {
    walk_forward(unit.blocks, blocks, 0, peaks.forward);
    return peaks;
  }
  peaks.kept_bytes = summary_of(blocks, unit.blocks.front().kind).input_bytes;
  walk_unkept(unit.blocks, blocks, peaks.forward);
  walk_forward(unit.blocks, blocks,
               summary_of(blocks, unit.blocks.back().kind).output_gradient_bytes, peaks.replay);
  return peaks;
}

// What a unit needs beyond its slot. A recomputed group's activations live in the frame.
std::int64_t frame_bytes(const Unit& unit, const UnitPeaks& peaks, const BlockSet& blocks) {
  if (unit.checkpointed) {
    return std::max({peaks.forward.bytes, peaks.replay.bytes, peaks.backward.bytes});
  }
  return summary_of(blocks, unit.blocks.front().kind).frame_bytes;
}

void raise(ChunkPoint& best, std::int64_t around_bytes, const UnitPoint& point, std::size_t unit,
           std::int64_t units_before) {
  if (point.bytes >= 0 && around_bytes + point.bytes > best.bytes) {
    best = {.bytes = around_bytes + point.bytes,
            .unit = unit,
            .units_before = units_before,
            .block = point.block,
            .blocks_before = point.blocks_before,
            .step = point.step};
  }
}

bool is_head(const Unit& unit) {
  return unit.blocks.front().kind == BlockKind::kHead;
}

ChunkPoint& at(ChunkPeaks& peaks, MomentKind moment) {
  return peaks.points[static_cast<std::size_t>(moment)];
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

// Static arenas: the dynamic one is a ring of equal slots, one per microbatch and chunk in flight,
// fixed buffers and one frame; both arenas are whole multiples of 2 MiB.
std::int64_t arena_bytes(const StateBytes& state, std::span<const ChunkPeaks> chunks,
                         std::span<const InFlightState> schedule) {
  std::int64_t slot = 0;
  std::int64_t frame = 0;
  for (const ChunkPeaks& chunk : chunks) {
    slot = std::max({slot, chunk.kept_bytes, chunk.pending_bytes});
    frame = std::max(frame, chunk.frame_bytes);
  }
  std::int64_t slots = 0;
  for (const InFlightState& in_flight : schedule) {
    std::int64_t used = 1;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      used += in_flight.saved[chunk] + in_flight.pending_weight[chunk];
    }
    slots = std::max(slots, used);
  }
  const std::int64_t idle = state.alive[static_cast<std::size_t>(Phase::kIdle)];
  const std::int64_t most = *std::ranges::max_element(state.alive);
  return round_up(idle, kArenaMultiple) +
         round_up(slots * slot + frame + most - idle, kArenaMultiple);
}

}  // namespace

std::int64_t reserved_upper_bytes(AllocatorKind kind, const StateBytes& state,
                                  std::int64_t allocated_bytes) {
  constexpr std::int64_t kSegments = 256 * kMiB;  // unfilled 2 and 20 MiB segments
  if (kind == AllocatorKind::kStaticArenas) {
    return allocated_bytes;
  }
  const std::int64_t between_steps = state.alive[static_cast<std::size_t>(Phase::kIdle)];
  const std::int64_t dynamic = allocated_bytes - between_steps;
  return allocated_bytes + state.start_up_only + between_steps / 16 + dynamic + dynamic / 2 +
         kSegments;
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

ChunkPeaks chunk_peaks(const ChunkLayout& chunk, const BlockSet& blocks) {
  ChunkPeaks peaks;
  std::vector<UnitPeaks> units;
  for (const Unit& unit : chunk.units) {
    units.push_back(unit_peaks(unit, blocks));
    peaks.kept_bytes += unit.count * units.back().kept_bytes;
    peaks.pending_bytes += unit.count * units.back().pending_bytes;
    peaks.frame_bytes = std::max(peaks.frame_bytes, frame_bytes(unit, units.back(), blocks));
  }
  std::int64_t kept = 0;
  std::int64_t pending_before = 0;
  std::int64_t pending_after = peaks.pending_bytes;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const std::int64_t count = chunk.units[i].count;
    const std::int64_t others = count - 1;
    const bool head = is_head(chunk.units[i]);
    pending_after -= count * unit.pending_bytes;
    raise(at(peaks, head ? MomentKind::kLossForward : MomentKind::kForward),
          kept + others * unit.kept_bytes, unit.forward, i, others);
    const std::int64_t first = kept + others * unit.kept_bytes + pending_after;
    const std::int64_t last = kept + others * unit.pending_bytes + pending_after;
    ChunkPoint& backward = at(peaks, head ? MomentKind::kLossBackward : MomentKind::kBackward);
    raise(backward, first, unit.backward, i, others);
    raise(backward, last, unit.backward, i, 0);
    raise(at(peaks, MomentKind::kReplay), first, unit.replay, i, others);
    raise(at(peaks, MomentKind::kReplay), last, unit.replay, i, 0);
    raise(at(peaks, MomentKind::kWeight), pending_before + others * unit.pending_bytes, unit.weight,
          i, others);
    kept += count * unit.kept_bytes;
    pending_before += count * unit.pending_bytes;
  }
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
                   now.pending_weight[chunk] * chunks[chunk].pending_bytes;
    }
    const ChunkPeaks& running = chunks[static_cast<std::size_t>(now.chunk)];
    for (const MomentKind moment : moments_of(now.action)) {
      const std::size_t index = static_cast<std::size_t>(moment);
      const std::int64_t base = state.alive[static_cast<std::size_t>(phase_of(moment))];
      raise_in_action(peaks.moments[index], base + in_flight, i, running.points[index]);
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
    peaks.arena_slack_bytes =
        std::max(arena_bytes(state, chunks, schedule), round_up(peaks.peak_bytes, kArenaMultiple)) -
        peaks.peak_bytes;
    first_step = peaks.peak_bytes;
    steady = peaks.peak_bytes;
  }
  peaks.allocated_bytes = peaks.peak_bytes + peaks.arena_slack_bytes;
  peaks.first_step_bytes = first_step + peaks.arena_slack_bytes;
  peaks.steady_bytes = steady + peaks.arena_slack_bytes;
  return peaks;
}

}  // namespace shardplan
