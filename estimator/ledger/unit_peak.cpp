#include "estimator/ledger/unit_peak.h"

#include <algorithm>
#include <vector>

namespace shardplan {
namespace {

void raise(UnitPoint& best, const UnitPoint& point) {
  if (point.bytes > best.bytes) {
    best = point;
  }
}

// Where the blocks of a run and the run behind it meet. `output` is the last forward step of the
// run's last block, which every block before it holds `per_block` less than the one behind.
void raise_meetings(const std::vector<BlockRun>& runs, std::size_t i, const BlockSummaries& blocks,
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
UnitPoint walk_forward(const std::vector<BlockRun>& runs, const BlockSummaries& blocks,
                       UnitPoint& best) {
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
void walk_replay(const std::vector<BlockRun>& runs, const BlockSummaries& blocks, UnitPoint& best) {
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
void walk_weight(const std::vector<BlockRun>& runs, const BlockSummaries& blocks, UnitPoint& best) {
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

// Gradients are reduced from the first block to the last, whose parameters are dropped with that:
// bytes change linearly along a run.
void walk_reduction(const std::vector<BlockRun>& runs, const BlockSummaries& blocks,
                    UnitPeaks& peaks) {
  std::int64_t around = peaks.gathered_bytes + peaks.gradient_bytes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const std::int64_t change =
        summary.reduced_bytes - summary.gathered_bytes - summary.gradient_bytes;
    for (const std::int64_t before : {std::int64_t{0}, runs[i].count - 1}) {
      raise(peaks.reduction,
            {.bytes = around + before * change - summary.gathered_bytes + summary.reduction_bytes,
             .block = i,
             .blocks_before = before,
             .step = Step::kWeight});
    }
    around += runs[i].count * change;
  }
}

// Backward from the last block: kept bytes fall and pending bytes rise linearly along a run, so the
// first or the last block processed wins it. The last of a recomputed group is processed before
// the group holds all that it holds besides.
void walk_backward(const Unit& unit, const BlockSummaries& blocks, Finds finds, UnitPoint& best) {
  const std::vector<BlockRun>& runs = unit.blocks;
  const std::int64_t group =
      unit.checkpointed ? summary_of(blocks, runs.back().kind).group_bytes : 0;
  std::int64_t kept = 0;
  std::int64_t pending = 0;
  for (const BlockRun& run : runs) { kept += run.count * summary_of(blocks, run.kind).kept_bytes; }
  for (std::size_t i = runs.size(); i-- > 0;) {
    const BlockSummary& summary = summary_of(blocks, runs[i].kind);
    const StepPeak& peak = finds == Finds::kNothing     ? summary.first_backward
                           : finds == Finds::kGradients ? summary.gathering_backward
                                                        : summary.backward;
    const std::int64_t left = left_bytes(summary, finds);
    const std::int64_t others = runs[i].count - 1;
    kept -= runs[i].count * summary.kept_bytes;
    const std::int64_t running = kept + pending + group + peak.bytes;
    std::int64_t done = 0;
    if (group > 0 && i + 1 == runs.size()) {
      raise(best,
            {.bytes = kept + pending + summary.group_backward.bytes + others * summary.kept_bytes,
             .block = i,
             .blocks_before = others,
             .step = summary.group_backward.step});
      done = 1;
    }
    if (done <= others) {
      raise(best, {.bytes = running + (others - done) * summary.kept_bytes + done * left,
                   .block = i,
                   .blocks_before = others - done,
                   .step = peak.step});
      raise(best,
            {.bytes = running + others * left, .block = i, .blocks_before = 0, .step = peak.step});
    }
    pending += runs[i].count * left;
  }
}

// Forward inside a group that will be recomputed: only the group's input and the running block.
// Returns the unit's last step.
UnitPoint walk_unkept(const std::vector<BlockRun>& runs, const BlockSummaries& blocks,
                      UnitPoint& best) {
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

}  // namespace

UnitPoint entering(UnitPoint output, const BlockSummaries& blocks, BlockKind before,
                   BlockKind behind, Pass pass) {
  const std::int64_t bytes = entry_bytes(blocks, pass, before, behind);
  output.bytes += bytes;
  output.entered = bytes > 0 ? std::optional(behind) : std::nullopt;
  return output;
}

UnitPeaks unit_peaks(const Unit& unit, const BlockSummaries& blocks) {
  UnitPeaks peaks;
  for (const BlockRun& run : unit.blocks) {
    peaks.kept_bytes += run.count * summary_of(blocks, run.kind).kept_bytes;
    peaks.pending_bytes += run.count * summary_of(blocks, run.kind).pending_bytes;
    peaks.gradient_bytes += run.count * summary_of(blocks, run.kind).gradient_bytes;
    peaks.gathered_bytes += run.count * summary_of(blocks, run.kind).gathered_bytes;
    peaks.regathered_bytes += run.count * summary_of(blocks, run.kind).regathered_bytes;
    peaks.reduced_bytes += run.count * summary_of(blocks, run.kind).reduced_bytes;
  }
  if (peaks.reduced_bytes > 0) {
    walk_reduction(unit.blocks, blocks, peaks);
  }
  walk_backward(unit, blocks, Finds::kAll, peaks.backward);
  walk_backward(unit, blocks, Finds::kNothing, peaks.first_backward);
  if (peaks.regathered_bytes > 0) {
    walk_backward(unit, blocks, Finds::kGradients, peaks.gathering_backward);
  }
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

UnitBytes unit_bytes(const UnitPeaks& peaks) {
  return {.kept_bytes = peaks.kept_bytes,
          .pending_bytes = peaks.pending_bytes,
          .gradient_bytes = peaks.gradient_bytes,
          .forward = peaks.forward.bytes,
          .replay = peaks.replay.bytes,
          .backward = peaks.backward.bytes,
          .first_backward = peaks.first_backward.bytes,
          .weight = peaks.weight.bytes};
}

std::int64_t frame_bytes(const Unit& unit, const BlockSummaries& blocks, std::int64_t entry) {
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

}  // namespace shardplan
