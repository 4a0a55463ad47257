// The pieces of a price's memory: chunks, as sums over their units.
#include <algorithm>
#include <span>
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

// Whether the second place lies on the line from the first to the third, which are further and
// further in the chunk. All three are of one unit, which each has once more in front.
bool is_between(std::span<const std::int64_t> first, std::span<const std::int64_t> second,
                std::span<const std::int64_t> third, std::size_t unit) {
  const std::int64_t before = second[unit] - first[unit];
  const std::int64_t behind = third[unit] - second[unit];
  for (std::size_t i = 0; i < first.size(); ++i) {
    if ((second[i] - first[i]) * behind != (third[i] - second[i]) * before) {
      return false;
    }
  }
  return true;
}

// Adds a place of a unit. Bytes change linearly along a line of places: its ends decide.
void add_place(std::vector<std::vector<std::int64_t>>& places, std::vector<std::int64_t> place,
               std::size_t unit) {
  const std::size_t known = places.size();
  if (known > 1 && is_between(places[known - 2], places[known - 1], place, unit)) {
    places.pop_back();
  }
  places.push_back(std::move(place));
}

// The chunk's distinct units and the places where they can decide.
void place_units(std::span<const NumberedUnit> runs, NumberedChunk& chunk) {
  std::vector<std::size_t> of_run;  // index into chunk.units
  for (const NumberedUnit& run : runs) {
    const auto same = std::ranges::find(chunk.units, run.unit);
    of_run.push_back(static_cast<std::size_t>(same - chunk.units.begin()));
    if (same == chunk.units.end()) {
      chunk.units.push_back(run.unit);
    }
  }
  std::vector<std::int64_t> before(chunk.units.size(), 0);
  std::vector<std::vector<std::vector<std::int64_t>>> places(chunk.units.size());
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const std::size_t unit = of_run[run];
    add_place(places[unit], before, unit);
    if (runs[run].count > 1) {
      before[unit] += runs[run].count - 1;
      add_place(places[unit], before, unit);
    }
    ++before[unit];
  }
  const auto write = [&](std::size_t unit, const std::vector<std::int64_t>& place) {
    chunk.places.push_back(unit);
    chunk.before.insert(chunk.before.end(), place.begin(), place.end());
  };
  for (std::size_t unit = 0; unit < places.size(); ++unit) { write(unit, places[unit].back()); }
  for (std::size_t unit = 0; unit < places.size(); ++unit) {
    places[unit].pop_back();
    for (const std::vector<std::int64_t>& place : places[unit]) { write(unit, place); }
  }
  chunk.counts = std::move(before);
}

}  // namespace

std::size_t PricePieces::number_chunk(const ChunkLayout& chunk) {
  const auto same = std::ranges::find(chunk_layouts, chunk, &NumberedChunk::layout);
  const std::size_t place = static_cast<std::size_t>(same - chunk_layouts.begin());
  if (same != chunk_layouts.end()) {
    return place;
  }
  std::vector<NumberedUnit> runs;
  for (Unit unit : chunk.units) {
    const std::int64_t count = std::exchange(unit.count, 1);
    const BlockKind front = unit.blocks.front().kind;
    if (unit == Unit{.blocks = {{.kind = front}}}) {
      runs.push_back({.unit = static_cast<std::size_t>(front), .count = count});
    } else {
      const auto group = std::ranges::find(groups, unit);
      const std::size_t at = static_cast<std::size_t>(group - groups.begin());
      runs.push_back({.unit = kNumBlockKinds + at, .count = count});
      if (group == groups.end()) {
        groups.push_back(std::move(unit));
      }
    }
  }
  NumberedChunk numbered{.layout = chunk};
  place_units(runs, numbered);
  chunk_layouts.push_back(std::move(numbered));
  return place;
}

const UnitBytes& PricePieces::group(const Plan& plan, const BlockMemo::Piece& block,
                                    std::size_t number) {
  const Unit& unit = groups[number - kNumBlockKinds];
  return group_pieces
      .find({block.number, static_cast<std::int64_t>(number)},
            [&](UnitBytes& piece) { piece = unit_bytes(unit_peaks(unit, summaries(plan))); })
      .value;
}

namespace {

std::int64_t sum_of(const std::int64_t* counts, std::span<const UnitBytes> units,
                    std::int64_t UnitBytes::*bytes) {
  std::int64_t sum = 0;
  for (const UnitBytes& unit : units) { sum += *counts++ * (unit.*bytes); }
  return sum;
}

// The places of units that leave something, pending or gradients, behind what runs.
void raise_leaving(const NumberedChunk& numbered, std::span<const UnitBytes> units,
                   ChunkBytes& chunk) {
  const std::int64_t* before = numbered.before.data();
  for (const std::size_t at : numbered.places) {
    const UnitBytes& of = units[at];
    const std::int64_t kept = sum_of(before, units, &UnitBytes::kept_bytes);
    const std::int64_t pending = sum_of(before, units, &UnitBytes::pending_bytes);
    const std::int64_t gradient = sum_of(before, units, &UnitBytes::gradient_bytes);
    const std::int64_t found = kept + chunk.pending - pending - of.pending_bytes;
    const std::int64_t made = found + chunk.gradient - gradient - of.gradient_bytes;
    raise(chunk.forward, kept, of.forward);
    raise(chunk.weight, pending, of.weight);
    raise(chunk.backward, found, std::max(of.backward, of.replay));
    raise(chunk.first_backward, made, std::max(of.first_backward, of.replay));
    before += units.size();
  }
  chunk.first_backward = chunk.gradient > 0 ? chunk.first_backward : chunk.backward;
}

// Of equal units that leave nothing the last one has the most in front.
void raise_last(const NumberedChunk& numbered, std::span<const UnitBytes> units,
                ChunkBytes& chunk) {
  const std::int64_t* before = numbered.before.data();
  for (const UnitBytes& of : units) {
    const std::int64_t kept = sum_of(before, units, &UnitBytes::kept_bytes);
    raise(chunk.forward, kept, of.forward);
    raise(chunk.backward, kept, std::max(of.backward, of.replay));
    chunk.weight = std::max(chunk.weight, of.weight);
    before += units.size();
  }
  chunk.first_backward = chunk.backward;
}

}  // namespace

// The same as chunk_peaks says, where no block writes rows of another.
void PricePieces::sum_chunk(const Plan& plan, const BlockMemo::Piece& block,
                            const NumberedChunk& numbered, ChunkBytes& chunk) {
  unit_space.resize(numbered.units.size());
  const std::span<UnitBytes> units = unit_space;
  chunk = {};
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::int64_t count = numbered.counts[i];
    const UnitBytes& of = units[i] = unit(plan, block, numbered.units[i]);
    chunk.kept += count * of.kept_bytes;
    chunk.pending += count * of.pending_bytes;
    chunk.gradient += count * of.gradient_bytes;
  }
  if (chunk.pending > 0 || chunk.gradient > 0) {
    raise_leaving(numbered, units, chunk);
  } else {
    raise_last(numbered, units, chunk);
  }
}

// Static arenas take sizes that sums leave out, and native blocks write each other's rows.
void PricePieces::find_chunk(const Plan& plan, const BlockMemo::Piece& block,
                             std::size_t layout, ChunkBytes& chunk) {
  const NumberedChunk& numbered = chunk_layouts[layout];
  const bool takes_sums = job.profile.allocator != AllocatorKind::kStaticArenas &&
                          job.profile.memory_model != MemoryModel::kNative;
  if (takes_sums) {
    sum_chunk(plan, block, numbered, chunk);
    return;
  }
  chunk = chunk_pieces
              .find({block.number, static_cast<std::int64_t>(layout)},
                    [&](ChunkBytes& piece) {
                      piece = bytes_of(chunk_peaks(numbered.layout, summaries(plan)));
                    })
              .value;
}

}  // namespace shardplan
