// Most bytes of one chunk of one microbatch: maximum over its runs of equal blocks and the events
// inside a block. Bytes change linearly along a run, so that its ends decide, but for buffers that
// come and go with the running unit.
#include "estimator/ledger/chunk_peak.h"

#include <algorithm>
#include <span>
#include <vector>

#include "estimator/ledger/unit_peak.h"

namespace shardplan {
namespace {

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

bool has_loss(const Unit& unit) {
  const BlockKind kind = unit.blocks.front().kind;
  return kind == BlockKind::kHead || kind == BlockKind::kLoss;
}

ChunkPoint& at(ChunkPoints& points, MomentKind moment) {
  return points[static_cast<std::size_t>(moment)];
}

// Backward and replay, from the last unit to the first: kept bytes fall and what the units behind
// leave rises linearly along a run.
void find_backward(const ChunkLayout& chunk, std::span<const UnitPeaks> units,
                   const FsdpBuffers& buffers, Finds finds, ChunkPoints& points) {
  std::size_t place = 0;
  std::int64_t kept = 0;
  std::int64_t left_after = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    left_after += chunk.units[i].count * left_bytes(units[i], finds);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const UnitPoint& running = finds == Finds::kNothing     ? unit.first_backward
                               : finds == Finds::kGradients ? unit.gathering_backward
                                                            : unit.backward;
    const std::int64_t left = left_bytes(unit, finds);
    const std::int64_t others = chunk.units[i].count - 1;
    left_after -= chunk.units[i].count * left;
    ChunkPoint& backward =
        at(points, has_loss(chunk.units[i]) ? MomentKind::kLossBackward : MomentKind::kBackward);
    const std::int64_t stride = buffers.empty() ? std::max<std::int64_t>(others, 1) : 1;
    for (std::int64_t before = others; before >= 0; before -= stride) {
      const std::size_t at_place = place + static_cast<std::size_t>(before);
      const std::int64_t around =
          kept + before * unit.kept_bytes + (others - before) * left + left_after;
      raise(backward, around + buffers.backward_bytes(at_place), running, i, before);
      const std::int64_t gathered = finds == Finds::kAll ? 0 : unit.regathered_bytes;
      raise(at(points, MomentKind::kReplay), around + gathered + buffers.replay_bytes(at_place),
            unit.replay, i, before);
    }
    place += static_cast<std::size_t>(chunk.units[i].count);
    kept += chunk.units[i].count * unit.kept_bytes;
  }
}

// The chunk's gradients behind its last action: units are reduced from the first to the last.
void find_reduction(const ChunkLayout& chunk, std::span<const UnitPeaks> units,
                    const ChunkPeaks& peaks, ChunkPoint& point) {
  std::int64_t around = peaks.gathered_bytes + peaks.gradient_bytes;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const std::int64_t whole = unit.gathered_bytes + unit.gradient_bytes;
    for (const std::int64_t before : {std::int64_t{0}, chunk.units[i].count - 1}) {
      raise(point, around + before * (unit.reduced_bytes - whole) - whole, unit.reduction, i,
            before);
    }
    around += chunk.units[i].count * (unit.reduced_bytes - whole);
  }
}

// Slots of a chunk: what one microbatch keeps, by how long.
void add_slot_bytes(ChunkPeaks& peaks, const Unit& unit, const UnitPeaks& bytes,
                    const BlockSummaries& blocks) {
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
void settle_ends(ChunkPeaks& peaks, const ChunkLayout& chunk, const BlockSummaries& blocks) {
  if (peaks.pending_bytes == 0) {
    return;
  }
  if (has_loss(chunk.units.back())) {
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

// The last forward steps of equal units in a row and of the last one, with what they write of the
// blocks behind them.
void raise_outputs(ChunkPoint& best, const ChunkLayout& chunk, std::size_t i,
                   const BlockSummaries& blocks, const UnitPeaks& unit, std::int64_t kept) {
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

std::size_t unit_place(const ChunkLayout& chunk, const ChunkPoint& point) {
  std::int64_t place = point.units_before;
  for (std::size_t i = 0; i < point.unit; ++i) { place += chunk.units[i].count; }
  return static_cast<std::size_t>(place);
}

ChunkPeaks chunk_peaks(const ChunkLayout& chunk, const BlockSummaries& blocks,
                       const FsdpBuffers& buffers) {
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
    peaks.gathered_bytes += unit.count * units.back().gathered_bytes;
    peaks.reduced_bytes += unit.count * units.back().reduced_bytes;
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
  std::size_t place = 0;
  std::int64_t kept = 0;
  std::int64_t pending_before = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPeaks& unit = units[i];
    const std::int64_t count = chunk.units[i].count;
    const std::int64_t others = count - 1;
    const bool loss = has_loss(chunk.units[i]);
    ChunkPoint& forward = at(peaks.points, loss ? MomentKind::kLossForward : MomentKind::kForward);
    for (std::int64_t before = others; before >= (buffers.empty() ? others : 0); --before) {
      const std::size_t at_place = place + static_cast<std::size_t>(before);
      raise(forward, kept + before * unit.kept_bytes + buffers.forward_bytes(at_place),
            unit.forward, i, before);
    }
    raise_outputs(forward, chunk, i, blocks, unit, kept);
    raise(at(peaks.points, MomentKind::kWeight), pending_before + others * unit.pending_bytes,
          unit.weight, i, others);
    place += static_cast<std::size_t>(count);
    kept += count * unit.kept_bytes;
    pending_before += count * unit.pending_bytes;
  }
  find_reduction(chunk, units, peaks, at(peaks.points, MomentKind::kReduction));
  find_backward(chunk, units, buffers, Finds::kAll, peaks.points);
  find_backward(chunk, units, buffers, Finds::kNothing, peaks.first_points);
  if (peaks.reduced_bytes > 0) {
    find_backward(chunk, units, buffers, Finds::kGradients, peaks.gathering_points);
  }
  return peaks;
}

}  // namespace shardplan
