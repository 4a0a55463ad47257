#include "estimator/ledger/block_memory.h"

#include <algorithm>

namespace shardplan {
namespace {

constexpr std::string_view kInputRow = "input";
constexpr std::string_view kOutputGradientRow = "output_gradient";

// Bytes alive at every step up to `kLast`, summed from where rows are born and where they die.
template <Step kLast>
class BytesBySteps {
 public:
  void add(Step born, Step dies, std::int64_t bytes) {
    if (born <= dies && born <= kLast) {
      change_[at(born)] += bytes;
      change_[at(std::min(dies, kLast)) + 1] -= bytes;
    }
  }
  // After the last add: changes become sums.
  void close() {
    std::int64_t sum = 0;
    for (std::int64_t& change : change_) { change = sum += change; }
  }
  std::int64_t at_step(Step step) const { return change_[at(step)]; }
  StepPeak peak(Step first, Step last) const {
    StepPeak peak{.bytes = -1, .step = first};
    for (std::size_t step = at(first); step <= at(last); ++step) {
      if (change_[step] > peak.bytes) {
        peak = {.bytes = change_[step], .step = static_cast<Step>(step)};
      }
    }
    return peak;
  }

 private:
  static constexpr std::size_t at(Step step) { return static_cast<std::size_t>(step); }
  std::array<std::int64_t, at(kLast) + 2> change_{};
};

// Whether the row takes room on the frame by itself.
bool is_on_frame(const BlockRow& row) {
  return row.place == Place::kOwn && !row.is_kept() && !row.is_pending();
}

FrameBytes frame_of(const BlockMemory& block, std::int64_t unkept_bytes) {
  BytesBySteps<kLastWeight> room;
  for (const BlockRow& row : block.rows) {
    if (is_on_frame(row)) {
      room.add(row.pushed, row.popped, row.bytes);
    }
  }
  room.close();
  const auto most = [&](Step first, Step last) { return room.peak(first, last).bytes; };
  FrameBytes frame{.entry = most(Step::kForwardInput, Step::kForwardInput),
                   .forward = most(Step::kForwardInput, kLastForward),
                   .forward_unkept = 0,
                   .replay = most(Step::kForwardInput, block.last_replayed),
                   .backward = most(kFirstBackward, kLastWeight)};
  frame.forward_unkept = frame.forward + unkept_bytes;
  return frame;
}

// Inline: of a state that is known most of it falls away.
inline bool is_alive_in(const BlockRow& row, BlockState state, Step step) {
  if (!row.is_of_steps()) {
    return (state == BlockState::kGathered && row.of == RowOf::kGathered) ||
           (state == BlockState::kReducing && row.of == RowOf::kReduction) ||
           (state == BlockState::kReduced && row.of == RowOf::kReduced);
  }
  if (row.is_of_group) {
    return state == BlockState::kGroup ||
           (state == BlockState::kGroupAt && row.born <= step && step <= row.dies);
  }
  switch (state) {
    case BlockState::kCheckpointed: return row.name == kInputRow || row.outlives_recompute;
    case BlockState::kKept: return row.is_kept();
    case BlockState::kPending: return row.is_pending();
    case BlockState::kRunning: return row.born <= step && step <= row.dies;
    case BlockState::kRunningAgain:
      return (!row.is_gradient || row.is_made_again) && !row.gathers && row.born <= step &&
             step <= row.dies;
    case BlockState::kRunningGathering:
      return (!row.is_gradient || row.is_made_again) && row.born <= step && step <= row.dies;
    case BlockState::kRunningReplay:
      return !row.is_not_replayed && row.born <= step && step <= row.dies;
    case BlockState::kGradients: return row.is_gradient;
    case BlockState::kReplaying:
      return row.born == kFirstBackward && row.name == kOutputGradientRow;
    case BlockState::kRunningUnkept: return row.born <= step && step <= row.last_forward_use;
    case BlockState::kRunningFirst:
      return row.born <= step && (step <= row.last_forward_use || row.name == kInputRow);
    case BlockState::kGroupAt:
    case BlockState::kGroup:
    case BlockState::kGathered:
    case BlockState::kReducing:
    case BlockState::kReduced: break;
  }
  return false;
}

}  // namespace

bool is_alive(const BlockRow& row, BlockState state, Step step) {
  return is_alive_in(row, state, step);
}

namespace {

// What a block holds whatever its step.
void add_held(BlockSummary& summary, const BlockRow& row) {
  const auto held = [&](BlockState state) {
    return is_alive_in(row, state, Step::kForwardInput) ? row.bytes : 0;
  };
  summary.input_bytes += held(BlockState::kCheckpointed);
  summary.kept_bytes += held(BlockState::kKept);
  summary.pending_bytes += held(BlockState::kPending);
  summary.output_gradient_bytes += held(BlockState::kReplaying);
  summary.gradient_bytes += held(BlockState::kGradients);
  summary.group_bytes += held(BlockState::kGroup);
  summary.gathered_bytes += held(BlockState::kGathered);
  summary.reduction_bytes += held(BlockState::kReducing);
  summary.reduced_bytes += held(BlockState::kReduced);
  summary.kept_pending_bytes += row.is_kept() && row.is_pending() ? row.bytes : 0;
  summary.passing_bytes += row.place == Place::kPendingSlot && !row.is_pending() ? row.bytes : 0;
  const auto place = std::ranges::find(kFixedPlaces, row.place);
  if (place != kFixedPlaces.end()) {
    summary.fixed_bytes[static_cast<std::size_t>(place - kFixedPlaces.begin())] =
        row.buffers * row.bytes;
  }
}

// A block's rows by steps, for each of the ways in which it may run.
struct StepBytes {
  bool has_gradients = false;
  bool has_group = false;
  BytesBySteps<kLastWeight> running;
  BytesBySteps<kLastWeight> again;      // gradients counted apart
  BytesBySteps<kLastWeight> gathering;  // again, with the parameters that it gathers
  BytesBySteps<kLastWeight> in_group;   // with what the backward of a group holds
  BytesBySteps<kLastForward> unkept;    // forward that keeps nothing
  BytesBySteps<kLastForward> first;     // the same, but its input

  void add(const BlockRow& row) {
    if (has_group) {
      in_group.add(row.born, row.dies, row.bytes);
    }
    if (row.is_of_group) {
      return;
    }
    running.add(row.born, row.dies, row.bytes);
    if (has_gradients && (!row.is_gradient || row.is_made_again)) {
      gathering.add(row.born, row.dies, row.bytes);
      again.add(row.born, row.dies, row.gathers ? 0 : row.bytes);
    }
    if (row.born <= kLastForward) {
      unkept.add(row.born, row.last_forward_use, row.bytes);
      const bool stays = row.name == kInputRow;
      first.add(row.born, stays ? kLastForward : row.last_forward_use, row.bytes);
    }
  }
  void close() {
    running.close();
    if (has_gradients) {
      again.close();
      gathering.close();
    }
    if (has_group) {
      in_group.close();
    }
    unkept.close();
    first.close();
  }
};

// The forward of a group's last block again: up to the last step, and with the rows, that are
// replayed.
StepPeak replay_peak(const BlockMemory& block, const StepBytes& bytes) {
  if (std::ranges::none_of(block.rows, &BlockRow::is_not_replayed)) {
    return bytes.running.peak(Step::kForwardInput, block.last_replayed);
  }
  BytesBySteps<kLastForward> replayed;
  for (const BlockRow& row : block.rows) {
    if (row.is_of_steps() && !row.is_not_replayed) {
      replayed.add(row.born, row.dies, row.bytes);
    }
  }
  replayed.close();
  return replayed.peak(Step::kForwardInput, block.last_replayed);
}

void set_forward(const BlockMemory& block, const StepBytes& bytes, BlockSummary& summary) {
  summary.forward = bytes.running.peak(Step::kForwardInput, kLastForward);
  summary.forward_unkept = bytes.unkept.peak(Step::kForwardInput, kLastForward);
  summary.forward_first = bytes.first.peak(Step::kForwardInput, kLastForward);
  summary.replay = replay_peak(block, bytes);
  summary.output_bytes = bytes.running.at_step(kLastForward);
  summary.output_unkept_bytes = bytes.unkept.at_step(kLastForward);
  summary.output_first_bytes = bytes.first.at_step(kLastForward);
  summary.input_entry_bytes = bytes.running.at_step(Step::kForwardInput);
  summary.norm_entry_bytes = bytes.running.at_step(Step::kForwardNorm);
}

void set_backward(const StepBytes& bytes, BlockSummary& summary) {
  const BytesBySteps<kLastWeight>& all = bytes.has_gradients ? bytes.again : bytes.running;
  summary.first_backward = bytes.running.peak(kFirstBackward, kLastBackward);
  summary.backward = all.peak(kFirstBackward, kLastBackward);
  summary.weight = all.peak(Step::kWeight, kLastWeight);
  if (bytes.has_gradients) {
    summary.gathering_backward = bytes.gathering.peak(kFirstBackward, kLastBackward);
  }
  if (bytes.has_group) {
    summary.group_backward = bytes.in_group.peak(kFirstBackward, kLastBackward);
  }
}

}  // namespace

BlockSummary summarise(const BlockMemory& block) {
  BlockSummary summary;
  StepBytes bytes;
  bytes.has_gradients = std::ranges::any_of(block.rows, &BlockRow::is_gradient);
  bytes.has_group = std::ranges::any_of(block.rows, &BlockRow::is_of_group);
  for (const BlockRow& row : block.rows) {
    add_held(summary, row);
    if (row.is_of_steps()) {
      bytes.add(row);
    }
  }
  bytes.close();
  const bool gathers = std::ranges::any_of(block.rows, &BlockRow::gathers);
  summary.regathered_bytes = gathers ? summary.gathered_bytes : 0;
  set_forward(block, bytes, summary);
  set_backward(bytes, summary);
  summary.writes_next_input = block.writes_next_input;
  if (block.has_frame) {
    summary.frame = frame_of(block, summary.kept_bytes - summary.input_bytes);
  }
  return summary;
}

BlockSummaries summaries_of(const BlockSet& blocks) {
  BlockSummaries summaries;
  for (std::size_t i = 0; i < blocks.size(); ++i) { summaries[i] = blocks[i].summary; }
  return summaries;
}

Step entry_step(Pass pass, BlockKind before, BlockKind block) {
  const auto has_norm = [](BlockKind kind) {
    return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer;
  };
  return pass == Pass::kForward && has_norm(before) && has_norm(block) ? Step::kForwardNorm
                                                                       : Step::kForwardInput;
}

std::int64_t entry_bytes(const BlockSummaries& blocks, Pass pass, BlockKind before,
                         BlockKind block) {
  if (!blocks[static_cast<std::size_t>(before)].writes_next_input) {
    return 0;
  }
  const BlockSummary& entered = blocks[static_cast<std::size_t>(block)];
  return entry_step(pass, before, block) == Step::kForwardNorm ? entered.norm_entry_bytes
                                                               : entered.input_entry_bytes;
}

}  // namespace shardplan
