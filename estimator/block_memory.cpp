#include "estimator/block_memory.h"

#include <algorithm>

#include "estimator/block_rows.h"
#include "estimator/eager_rows.h"

namespace shardplan {
namespace {

constexpr std::array<std::string_view, kNumBlockKinds> kBlockNames = {
    "embedding",  "layer.first", "layer.dense", "layer.moe",
    "layer.last", "mtp",         "head",        "sent_output"};

constexpr std::string_view kInputRow = "input";
constexpr std::string_view kOutputGradientRow = "output_gradient";

std::int64_t alive_bytes(const std::vector<BlockRow>& rows, BlockState state, Step step) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : rows) { bytes += is_alive(row, state, step) ? row.bytes : 0; }
  return bytes;
}

StepPeak peak_between(const std::vector<BlockRow>& rows, BlockState state, Step first, Step last) {
  StepPeak peak{.bytes = -1, .step = first};
  for (int step = static_cast<int>(first); step <= static_cast<int>(last); ++step) {
    const std::int64_t bytes = alive_bytes(rows, state, static_cast<Step>(step));
    if (bytes > peak.bytes) {
      peak = {.bytes = bytes, .step = static_cast<Step>(step)};
    }
  }
  return peak;
}

// Whether the row takes room on the frame by itself.
bool is_on_frame(const BlockRow& row) {
  return row.place == Place::kOwn && !row.is_kept() && !row.is_pending();
}

FrameBytes frame_of(const BlockMemory& block) {
  const auto most = [&](Step first, Step last) {
    std::int64_t most_bytes = 0;
    for (int step = static_cast<int>(first); step <= static_cast<int>(last); ++step) {
      std::int64_t bytes = 0;
      for (const BlockRow& row : block.rows) {
        const bool takes_room = is_on_frame(row) && row.pushed <= static_cast<Step>(step) &&
                                static_cast<Step>(step) <= row.popped;
        bytes += takes_room ? row.bytes : 0;
      }
      most_bytes = std::max(most_bytes, bytes);
    }
    return most_bytes;
  };
  FrameBytes frame{.entry = most(Step::kForwardInput, Step::kForwardInput),
                   .forward = most(Step::kForwardInput, kLastForward),
                   .forward_unkept = 0,
                   .replay = most(Step::kForwardInput, block.last_replayed),
                   .backward = most(kFirstBackward, kLastWeight)};
  const std::int64_t kept = alive_bytes(block.rows, BlockState::kKept, Step::kForwardInput) -
                            alive_bytes(block.rows, BlockState::kCheckpointed, Step::kForwardInput);
  frame.forward_unkept = frame.forward + kept;
  return frame;
}

bool exists(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
    case BlockKind::kHead:
    case BlockKind::kSentOutput: return true;
    case BlockKind::kFirstLayer:
    case BlockKind::kLastLayer: return job.profile.memory_model == MemoryModel::kTorchtitan;
    case BlockKind::kDenseLayer:
      return std::ranges::find(job.model.layers, false, &LayerSpec::is_moe) !=
             job.model.layers.end();
    case BlockKind::kMoeLayer:
      return std::ranges::find(job.model.layers, true, &LayerSpec::is_moe) !=
             job.model.layers.end();
    case BlockKind::kMtp: return job.model.num_mtp_layers > 0;
  }
  return false;
}

std::vector<BlockRow> rows_of(const Job& job, const Plan& plan, BlockKind kind) {
  switch (job.profile.memory_model) {
    case MemoryModel::kNative: return native_rows(job, plan, kind);
    case MemoryModel::kTorchtitan: return torchtitan_rows(job, plan, kind);
    case MemoryModel::kMegatronLocal: return megatron_local_rows(job, plan, kind);
    case MemoryModel::kNanotron: return nanotron_rows(job, plan, kind);
    case MemoryModel::kDeepspeed: return deepspeed_rows(job, plan, kind);
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatron: break;
  }
  return megatron_rows(job, plan, kind);
}

}  // namespace

bool delays_weight_gradients(Schedule schedule) {
  return schedule == Schedule::kZbH1 || schedule == Schedule::kInterleavedZeroBubble ||
         schedule == Schedule::kZbv;
}

bool is_alive(const BlockRow& row, BlockState state, Step step) {
  switch (state) {
    case BlockState::kCheckpointed: return row.name == kInputRow || row.outlives_recompute;
    case BlockState::kKept: return row.is_kept();
    case BlockState::kPending: return row.is_pending();
    case BlockState::kRunning: return row.born <= step && step <= row.dies;
    case BlockState::kRunningAgain: return !row.is_gradient && row.born <= step && step <= row.dies;
    case BlockState::kGradients: return row.is_gradient;
    case BlockState::kReplaying:
      return row.name == kOutputGradientRow && row.born == kFirstBackward;
    case BlockState::kRunningUnkept: return row.born <= step && step <= row.last_forward_use;
    case BlockState::kRunningFirst:
      return row.born <= step && (step <= row.last_forward_use || row.name == kInputRow);
  }
  return false;
}

BlockSummary summarise(const BlockMemory& block) {
  const std::vector<BlockRow>& rows = block.rows;
  BlockSummary summary;
  summary.input_bytes = alive_bytes(rows, BlockState::kCheckpointed, Step::kForwardInput);
  summary.kept_bytes = alive_bytes(rows, BlockState::kKept, Step::kForwardInput);
  summary.pending_bytes = alive_bytes(rows, BlockState::kPending, Step::kForwardInput);
  for (const BlockRow& row : rows) {
    summary.kept_pending_bytes += row.is_kept() && row.is_pending() ? row.bytes : 0;
    summary.passing_bytes += row.place == Place::kPendingSlot && !row.is_pending() ? row.bytes : 0;
  }
  summary.output_gradient_bytes = alive_bytes(rows, BlockState::kReplaying, Step::kForwardInput);
  summary.gradient_bytes = alive_bytes(rows, BlockState::kGradients, Step::kForwardInput);
  const auto forward = [&](BlockState state, Step last) {
    return peak_between(rows, state, Step::kForwardInput, last);
  };
  summary.forward = forward(BlockState::kRunning, kLastForward);
  summary.forward_unkept = forward(BlockState::kRunningUnkept, kLastForward);
  summary.forward_first = forward(BlockState::kRunningFirst, kLastForward);
  summary.replay = forward(BlockState::kRunning, block.last_replayed);
  summary.backward = peak_between(rows, BlockState::kRunningAgain, kFirstBackward, kLastBackward);
  summary.first_backward = peak_between(rows, BlockState::kRunning, kFirstBackward, kLastBackward);
  summary.weight = peak_between(rows, BlockState::kRunningAgain, Step::kWeight, kLastWeight);
  summary.output_bytes = alive_bytes(rows, BlockState::kRunning, kLastForward);
  summary.output_unkept_bytes = alive_bytes(rows, BlockState::kRunningUnkept, kLastForward);
  summary.output_first_bytes = alive_bytes(rows, BlockState::kRunningFirst, kLastForward);
  summary.frame = frame_of(block);
  for (const BlockRow& row : rows) {
    const auto place = std::ranges::find(kFixedPlaces, row.place);
    if (place != kFixedPlaces.end()) {
      summary.fixed_bytes[static_cast<std::size_t>(place - kFixedPlaces.begin())] =
          row.buffers * row.bytes;
    }
  }
  return summary;
}

Step entry_step(Pass pass, BlockKind before, BlockKind block) {
  const auto is_layer = [](BlockKind kind) {
    return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer;
  };
  return pass == Pass::kForward && is_layer(before) && is_layer(block) ? Step::kForwardNorm
                                                                       : Step::kForwardInput;
}

std::int64_t entry_bytes(const BlockSet& blocks, Pass pass, BlockKind before, BlockKind block) {
  if (!blocks[static_cast<std::size_t>(before)].writes_next_input) {
    return 0;
  }
  return alive_bytes(blocks[static_cast<std::size_t>(block)].rows, BlockState::kRunning,
                     entry_step(pass, before, block));
}

BlockSet block_set(const Job& job, const Plan& plan) {
  BlockSet set;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    BlockMemory& block = set[static_cast<std::size_t>(i)];
    block.kind = kind;
    block.name = kBlockNames[static_cast<std::size_t>(i)];
    if (!exists(job, kind)) {
      continue;
    }
    const bool is_native = job.profile.memory_model == MemoryModel::kNative;
    block.rows = rows_of(job, plan, kind);
    block.writes_next_input = is_native;
    block.last_replayed = is_native ? Step::kForwardActivation : kLastForward;
    block.summary = summarise(block);
  }
  return set;
}

}  // namespace shardplan
