#include "estimator/answer/stage_memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "estimator/answer/blocks.h"
#include "estimator/answer/outside_memory.h"
#include "estimator/answer/stage_state.h"
#include "estimator/frameworks/framework.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/in_flight.h"

namespace shardplan {
namespace {

Row state_row(const StateRow& row, Phase phase) {
  const bool always = row.is_resident();
  const std::string end = always ? "end" : std::string(name_of(row.last));
  const std::string start = row.made_by_first_step ? "first optimizer_step" : "start";
  return {.component = row.component,
          .name = std::string(row.name),
          .elements = row.elements,
          .dtype = row.dtype,
          .bytes = row.bytes,
          .copies = row.is_alive(phase) ? row.copies : 0,
          .born = {always ? start : std::string(name_of(row.first))},
          .dies = {end},
          .formula = std::string(row.formula),
          .origin = row.origin};
}

Row block_row(const BlockMemory& block, const BlockRow& row, std::int64_t copies) {
  return {.component = row.component,
          .name = std::string(block.name) + "." + std::string(row.name),
          .elements = row.elements,
          .dtype = row.dtype,
          .bytes = row.bytes,
          .copies = copies,
          .born = {std::string(name_of(row.born))},
          .dies = {std::string(name_of(row.dies))},
          .formula = std::string(row.formula)};
}

// Tensors of our own trainer have one name in every block; their copies are counted together.
void add_copies(std::vector<Row>& rows, const Row& row) {
  for (Row& other : rows) {
    if (other.name == row.name && other.component == row.component &&
        other.elements == row.elements && other.dtype == row.dtype) {
      other.copies += row.copies;
      return;
    }
  }
  rows.push_back(row);
}

// Rows of every kind of block on the stage, with the copies alive at the peak.
void add_block_rows(std::vector<Row>& rows, const BlockSet& blocks, const StagePieces& pieces,
                    const std::vector<AliveBlocks>& alive, bool by_tensor) {
  for (const BlockMemory& block : blocks) {
    if (count_blocks(pieces.layout, block.kind) == 0) {
      continue;
    }
    for (const BlockRow& row : block.rows) {
      if (row.made_once_bytes > 0) {
        continue;  // a row of the state
      }
      std::int64_t copies = 0;
      for (const AliveBlocks& entry : alive) {
        const bool counts = entry.kind == block.kind && is_alive(row, entry.state, entry.step);
        copies += counts ? entry.copies : 0;
      }
      Row listed = block_row(block, row, copies);
      if (by_tensor) {
        listed.name = row.name;
        add_copies(rows, listed);
      } else {
        rows.push_back(std::move(listed));
      }
    }
  }
}

std::vector<AliveBlocks> alive_at_peak(const StagePieces& pieces) {
  const StagePoint& peak = pieces.peaks.moments[static_cast<std::size_t>(pieces.peaks.peak)];
  if (peak.point.bytes < 0) {
    return {};
  }
  return alive_blocks(pieces.layout, pieces.schedule[peak.state], pieces.peaks.peak, peak.point);
}

std::vector<Moment> sorted_moments(const StagePeaks& peaks) {
  std::vector<Moment> moments;
  for (std::int64_t i = 0; i < kNumMoments; ++i) {
    const StagePoint& point = peaks.moments[static_cast<std::size_t>(i)];
    if (point.bytes < 0) {
      continue;
    }
    const MomentKind kind = static_cast<MomentKind>(i);
    const bool in_action = point.point.bytes >= 0;
    moments.push_back(
        {.name = std::string(name_of(kind)),
         .allocated_bytes = point.bytes + peaks.arena_slack_bytes,
         .event = std::string(in_action ? name_of(point.point.step) : name_of(phase_of(kind)))});
  }
  // The moment that gave the peak stays in front of others of the same size.
  const auto is_peak = [&](const Moment& moment) { return moment.name == name_of(peaks.peak); };
  std::stable_partition(moments.begin(), moments.end(), is_peak);
  std::ranges::stable_sort(moments, std::ranges::greater{}, &Moment::allocated_bytes);
  return moments;
}

StagePeaks played_peaks(const PlayedPeaks& played) {
  StagePeaks peaks;
  for (std::size_t i = 0; i < peaks.moments.size(); ++i) {
    peaks.moments[i].bytes = played.moments[i];
  }
  const auto fullest = std::ranges::max_element(played.moments);
  peaks.peak = static_cast<MomentKind>(fullest - played.moments.begin());
  peaks.peak_bytes = *fullest;
  peaks.allocated_bytes = *fullest;
  peaks.first_step_bytes = played.first_step_bytes;
  peaks.steady_bytes = played.steady_bytes;
  return peaks;
}

StagePieces stage_pieces(const Job& job, const Plan& plan, const LayerPartition& partition,
                         const BlockSummaries& blocks, std::int64_t pp_rank,
                         std::optional<std::int64_t> data_rank) {
  StagePieces pieces;
  pieces.layout = stage_layout(job, plan, partition, pp_rank);
  pieces.state = stage_state(job, plan, pieces.layout, data_rank);
  for (const StateRow& row : sequence_rows(job, plan, pieces.layout.ends)) {
    if (row.total_bytes() > 0) {
      pieces.state.rows.push_back(row);
      pieces.state.bytes.add(row);
    }
  }
  for (const ChunkLayout& chunk : pieces.layout.chunks) {
    pieces.buffers.push_back(chunk_buffers(job, plan, chunk));
    pieces.chunks.push_back(chunk_peaks(chunk, blocks, pieces.buffers.back()));
  }
  pieces.schedule = peak_in_flight_states(schedule_shape(job, plan), pp_rank);
  const bool has_arenas = job.profile.allocator == AllocatorKind::kStaticArenas;
  pieces.peaks = pieces.state.played && !has_arenas
                     ? played_peaks(*pieces.state.played)
                     : stage_peaks(job, pieces.state.bytes, pieces.chunks, pieces.schedule);
  return pieces;
}

}  // namespace

PlanPieces plan_pieces(const Job& job, const Plan& plan, std::optional<std::int64_t> data_rank) {
  PlanPieces pieces{.blocks = block_set(job, plan), .stages = {}, .data_rank = data_rank};
  const LayerPartition partition = partition_layers(job, plan);
  const BlockSummaries summaries = summaries_of(pieces.blocks);
  for (std::int64_t pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
    pieces.stages.push_back(stage_pieces(job, plan, partition, summaries, pp_rank, data_rank));
  }
  return pieces;
}

StageMemory stage_memory(const Job& job, const Plan& plan, const BlockSet& blocks,
                         const StagePieces& pieces) {
  const StagePeaks& peaks = pieces.peaks;
  StageMemory memory;
  memory.pp_rank = pieces.layout.pp_rank;
  memory.num_layers = pieces.layout.num_layers;
  memory.parameters = pieces.state.parameters;
  for (const StateRow& row : pieces.state.rows) {
    memory.rows.push_back(state_row(row, phase_of(peaks.peak)));
  }
  add_block_rows(memory.rows, blocks, pieces, alive_at_peak(pieces),
                 framework_of(job.profile).names_rows_by_tensor);
  const Framework& framework = framework_of(job.profile);
  if (framework.add_buffer_rows != nullptr) {
    framework.add_buffer_rows(memory.rows, job, plan, pieces);
  }
  if (peaks.arena_slack_bytes > 0) {
    memory.rows.push_back({.component = Component::kTemporaries,
                           .name = "arena.unused",
                           .elements = peaks.arena_slack_bytes,
                           .dtype = DType::kBool,
                           .bytes = peaks.arena_slack_bytes,
                           .copies = 1,
                           .born = {"start"},
                           .dies = {"end"},
                           .formula = "equal ring slots and 2 MiB arenas, beyond what is alive"});
  }
  for (const Row& row : memory.rows) { memory.allocated_bytes += row.total_bytes(); }
  if (memory.allocated_bytes != peaks.allocated_bytes) {
    throw std::logic_error("stage_memory: rows add up to " +
                           std::to_string(memory.allocated_bytes) + ", the peak is " +
                           std::to_string(peaks.allocated_bytes));
  }
  std::ranges::move(outside_rows(job, plan, memory.pp_rank), std::back_inserter(memory.rows));
  for (const Row& row : memory.rows) {
    memory.components[static_cast<std::size_t>(row.component)] += row.total_bytes();
    memory.outside_bytes += row.in_allocator ? 0 : row.total_bytes();
  }
  memory.moments = sorted_moments(peaks);
  memory.state_bytes = pieces.state.bytes.alive[static_cast<std::size_t>(Phase::kIdle)];
  memory.built_bytes = pieces.state.bytes.alive[static_cast<std::size_t>(Phase::kBuilt)];
  memory.steady_bytes = peaks.steady_bytes;
  memory.first_step_bytes = peaks.first_step_bytes;
  memory.reserved_bytes = memory.allocated_bytes;
  memory.required_bytes = memory.allocated_bytes;
  memory.device_used_bytes = memory.reserved_bytes + memory.outside_bytes;
  return memory;
}

}  // namespace shardplan
