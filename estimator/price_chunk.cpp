// The pieces of a price's memory: chunks, as sums over their units.
#include <algorithm>
#include <utility>

#include "estimator/price_pieces.h"

namespace shardplan {
namespace {

std::int64_t largest(const ChunkPoints& points, std::initializer_list<MomentKind> moments) {
  std::int64_t bytes = -1;
  for (const MomentKind moment : moments) {
    bytes = std::max(bytes, points[static_cast<std::size_t>(moment)].bytes);
  }
  return bytes;
}

ChunkBytes bytes_of(const ChunkPeaks& peaks) {
  const auto backward = {MomentKind::kReplay, MomentKind::kBackward, MomentKind::kLossBackward};
  return {.kept = peaks.kept_bytes,
          .pending = peaks.pending_bytes,
          .gradient = peaks.gradient_bytes,
          .forward = largest(peaks.points, {MomentKind::kForward, MomentKind::kLossForward}),
          .backward = largest(peaks.points, backward),
          .first_backward = largest(peaks.first_points, backward),
          .weight = largest(peaks.points, {MomentKind::kWeight}),
          .arena = arena_sizes(peaks)};
}

void raise(std::int64_t& most, std::int64_t around, std::int64_t bytes) {
  most = bytes < 0 ? most : std::max(most, around + bytes);
}

// The same as chunk_peaks says, where no block writes rows of another: `count` units in a row.
void add_forward(ChunkBytes& chunk, const UnitBytes& unit, std::int64_t count) {
  raise(chunk.forward, chunk.kept + (count - 1) * unit.kept_bytes, unit.forward);
  raise(chunk.weight, chunk.pending + (count - 1) * unit.pending_bytes, unit.weight);
  chunk.kept += count * unit.kept_bytes;
  chunk.pending += count * unit.pending_bytes;
  chunk.gradient += count * unit.gradient_bytes;
}

// `kept` by the units in front, `left` by those behind; either end of the row decides.
void add_backward(std::int64_t& most, const UnitBytes& unit, std::int64_t count, std::int64_t kept,
                  std::int64_t left, Gradients gradients) {
  const std::int64_t first = kept + (count - 1) * unit.kept_bytes + left;
  const std::int64_t last = kept + (count - 1) * left_bytes(unit, gradients) + left;
  const std::int64_t around = std::max(first, last);
  raise(most, around, gradients == Gradients::kMade ? unit.first_backward : unit.backward);
  raise(most, around, unit.replay);
}

}  // namespace

std::size_t PricePieces::number_chunk(const ChunkLayout& chunk) {
  const auto same = std::ranges::find(chunk_layouts, chunk, &NumberedChunk::layout);
  const std::size_t place = static_cast<std::size_t>(same - chunk_layouts.begin());
  if (same != chunk_layouts.end()) {
    return place;
  }
  NumberedChunk numbered{.layout = chunk, .units = {}};
  for (Unit unit : chunk.units) {
    const std::int64_t count = std::exchange(unit.count, 1);
    const BlockKind front = unit.blocks.front().kind;
    if (unit == Unit{.blocks = {{.kind = front}}}) {
      numbered.units.push_back({.unit = static_cast<std::size_t>(front), .count = count});
    } else {
      const auto group = std::ranges::find(groups, unit);
      const std::size_t at = static_cast<std::size_t>(group - groups.begin());
      numbered.units.push_back({.unit = kNumBlockKinds + at, .count = count});
      if (group == groups.end()) {
        groups.push_back(std::move(unit));
      }
    }
  }
  chunk_layouts.push_back(std::move(numbered));
  return place;
}

const UnitBytes& PricePieces::group(const Plan& plan, const PieceMemo<BlockPiece, 8>::Piece& block,
                                    std::size_t number) {
  const Unit& unit = groups[number - kNumBlockKinds];
  return group_pieces
      .find({block.number, static_cast<std::int64_t>(number)},
            [&](UnitBytes& piece) { piece = unit_bytes(unit_peaks(unit, summaries(plan))); })
      .value;
}

ChunkBytes PricePieces::summed_bytes(const Plan& plan, const PieceMemo<BlockPiece, 8>::Piece& block,
                                     std::span<const NumberedUnit> units) {
  ChunkBytes chunk;
  for (const auto& [number, count] : units) {
    add_forward(chunk, unit(plan, block, number), count);
  }
  std::int64_t kept = 0;
  std::int64_t pending = chunk.pending;
  std::int64_t gradient = chunk.gradient;
  for (const auto& [number, count] : units) {
    const UnitBytes& of = unit(plan, block, number);
    pending -= count * of.pending_bytes;
    gradient -= count * of.gradient_bytes;
    add_backward(chunk.backward, of, count, kept, pending, Gradients::kFound);
    if (chunk.gradient > 0) {
      add_backward(chunk.first_backward, of, count, kept, pending + gradient, Gradients::kMade);
    }
    kept += count * of.kept_bytes;
  }
  chunk.first_backward = chunk.gradient > 0 ? chunk.first_backward : chunk.backward;
  return chunk;
}

// Static arenas take sizes that sums leave out, and native blocks write each other's rows.
ChunkBytes PricePieces::chunk_bytes(const Plan& plan, const PieceMemo<BlockPiece, 8>::Piece& block,
                                    std::size_t layout) {
  const NumberedChunk& chunk = chunk_layouts[layout];
  const bool takes_sums = job.profile.allocator != AllocatorKind::kStaticArenas &&
                          job.profile.memory_model != MemoryModel::kNative;
  if (takes_sums) {
    return summed_bytes(plan, block, chunk.units);
  }
  return chunk_pieces
      .find(
          {block.number, static_cast<std::int64_t>(layout)},
          [&](ChunkBytes& piece) { piece = bytes_of(chunk_peaks(chunk.layout, summaries(plan))); })
      .value;
}

}  // namespace shardplan
