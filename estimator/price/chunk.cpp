// The pieces of a price's memory: chunks, as sums over their units.
#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "estimator/answer/blocks.h"
#include "estimator/frameworks/framework.h"
#include "estimator/price/pieces.h"

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
          .gathering_backward = largest(peaks.gathering_points, backward),
          .weight = largest(peaks.points, {MomentKind::kWeight}),
          .reduction = largest(peaks.points, {MomentKind::kReduction}),
          .gathered = peaks.gathered_bytes,
          .reduced = peaks.reduced_bytes,
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
  for (const NumberedUnit& run : runs) { of_run.push_back(index_in(chunk.units, run.unit)); }
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
      const auto kind = std::ranges::find(block_kinds, front);
      runs.push_back(
          {.unit = static_cast<std::size_t>(kind - block_kinds.begin()), .count = count});
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

// The distinct units of one chunk, among those of a layout.
struct ChunkUnits {
  const UnitBytes* units;  // of the layout
  std::span<const std::size_t> at;

  std::size_t size() const { return at.size(); }
  const UnitBytes& operator[](std::size_t i) const { return units[at[i]]; }
  std::int64_t sum(const std::int64_t* counts, std::int64_t UnitBytes::*bytes) const {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < at.size(); ++i) { total += counts[i] * ((*this)[i].*bytes); }
    return total;
  }
};

// Units leave something, pending or gradients, behind what runs: every place counts.
void sum_leaving(const NumberedChunk& numbered, const ChunkUnits& units, ChunkBytes& chunk) {
  chunk.pending = units.sum(numbered.counts.data(), &UnitBytes::pending_bytes);
  chunk.gradient = units.sum(numbered.counts.data(), &UnitBytes::gradient_bytes);
  const std::int64_t* before = numbered.before.data();
  for (const std::size_t at : numbered.places) {
    const UnitBytes& of = units[at];
    const std::int64_t kept = units.sum(before, &UnitBytes::kept_bytes);
    const std::int64_t pending = units.sum(before, &UnitBytes::pending_bytes);
    const std::int64_t gradient = units.sum(before, &UnitBytes::gradient_bytes);
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
void sum_last(const NumberedChunk& numbered, const ChunkUnits& units, ChunkBytes& chunk) {
  const std::int64_t* before = numbered.before.data();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitBytes& of = units[i];
    const std::int64_t kept = units.sum(before, &UnitBytes::kept_bytes);
    raise(chunk.forward, kept, of.forward);
    raise(chunk.backward, kept, std::max(of.backward, of.replay));
    chunk.weight = std::max(chunk.weight, of.weight);
    before += units.size();
  }
  chunk.first_backward = chunk.backward;
}

}  // namespace

// The same as chunk_peaks says, where no block writes rows of another.
void PricePieces::sum_chunks(const Plan& plan, const BlockMemo::Piece& block,
                             const LayoutPiece& stages) {
  unit_space.resize(stages.units.size());
  bool leaves = false;
  for (std::size_t i = 0; i < unit_space.size(); ++i) {
    const UnitBytes& of = unit_space[i] = unit(plan, block, stages.units[i]);
    leaves = leaves || of.pending_bytes > 0 || of.gradient_bytes > 0;
  }
  const std::size_t* at = stages.chunk_units.data();
  for (std::size_t i = 0; i < stages.chunks.size(); ++i) {
    const NumberedChunk& numbered = chunk_layouts[stages.chunks[i]];
    const ChunkUnits units = {.units = unit_space.data(), .at = {at, numbered.units.size()}};
    ChunkBytes& chunk = chunk_byte_space[i];
    chunk = {};
    chunk.kept = units.sum(numbered.counts.data(), &UnitBytes::kept_bytes);
    if (leaves) {
      sum_leaving(numbered, units, chunk);
    } else {
      sum_last(numbered, units, chunk);
    }
    at += units.size();
  }
}

// Recomputation and the size of a microbatch change nothing of it but the layout.
const FsdpBuffers& PricePieces::buffers(const Plan& plan, std::size_t layout) {
  return buffer_pieces
      .find({block_axes[0], block_axes[1],
             packed(block_axes[5], static_cast<std::int64_t>(plan.precision)),
             static_cast<std::int64_t>(layout)},
            [&](FsdpBuffers& piece) {
              piece = chunk_buffers(job, plan, chunk_layouts[layout].layout);
            })
      .value;
}

// Static arenas take sizes that sums leave out, blocks may write each other's rows, and buckets are
// those of a unit's place. A pipeline's parameters and gradients under
// FSDP2 come and go with the chunk.
void PricePieces::find_chunks(const Plan& plan, const BlockMemo::Piece& block,
                              const LayoutPiece& stages) {
  chunk_byte_space.resize(stages.chunks.size());
  const bool takes_sums = job.profile.allocator != AllocatorKind::kStaticArenas &&
                          !framework_of(job.profile).writes_next_input &&
                          !gathers_by_unit(job, plan) && !shards_in_pipeline(job, plan);
  if (takes_sums) {
    sum_chunks(plan, block, stages);
    return;
  }
  std::optional<BlockSummaries> blocks;
  for (std::size_t i = 0; i < stages.chunks.size(); ++i) {
    const std::size_t layout = stages.chunks[i];
    chunk_byte_space[i] =
        chunk_pieces
            .find({block.number, static_cast<std::int64_t>(layout)},
                  [&](ChunkBytes& piece) {
                    const ChunkLayout& chunk = chunk_layouts[layout].layout;
                    if (!blocks) {
                      blocks = summaries(plan);
                    }
                    piece = bytes_of(chunk_peaks(chunk, *blocks, buffers(plan, layout)));
                  })
            .value;
  }
}

}  // namespace shardplan
