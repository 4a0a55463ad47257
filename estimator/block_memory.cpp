#include "estimator/block_memory.h"

#include <algorithm>

#include "estimator/block_rows.h"

namespace shardplan {
namespace {

constexpr std::array<std::string_view, kNumBlockKinds> kBlockNames = {
    "embedding", "layer.dense", "layer.moe", "mtp", "head", "sent_output"};

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

bool exists(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
    case BlockKind::kHead:
    case BlockKind::kSentOutput: return true;
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

}  // namespace

bool delays_weight_gradients(Schedule schedule) {
  return schedule == Schedule::kZbH1 || schedule == Schedule::kInterleavedZeroBubble ||
         schedule == Schedule::kZbv;
}

bool is_alive(const BlockRow& row, BlockState state, Step step) {
  switch (state) {
    case BlockState::kCheckpointed: return row.name == kInputRow;
    case BlockState::kKept: return row.is_kept();
    case BlockState::kPending: return row.is_pending();
    case BlockState::kRunning: return row.born <= step && step <= row.dies;
    case BlockState::kReplaying: return row.name == kOutputGradientRow;
    case BlockState::kRunningUnkept: return row.born <= step && step <= row.last_forward_use;
  }
  return false;
}

BlockSummary summarise(const std::vector<BlockRow>& rows) {
  BlockSummary summary;
  summary.input_bytes = alive_bytes(rows, BlockState::kCheckpointed, Step::kForwardInput);
  summary.kept_bytes = alive_bytes(rows, BlockState::kKept, Step::kForwardInput);
  summary.pending_bytes = alive_bytes(rows, BlockState::kPending, Step::kForwardInput);
  summary.output_gradient_bytes = alive_bytes(rows, BlockState::kReplaying, Step::kForwardInput);
  std::vector<BlockRow> frame = rows;
  std::erase_if(frame, [](const BlockRow& row) { return row.is_kept() || row.is_pending(); });
  summary.frame_bytes =
      peak_between(frame, BlockState::kRunning, Step::kForwardInput, Step::kWeight).bytes;
  summary.forward = peak_between(rows, BlockState::kRunning, Step::kForwardInput, kLastForward);
  summary.forward_unkept =
      peak_between(rows, BlockState::kRunningUnkept, Step::kForwardInput, kLastForward);
  summary.backward = peak_between(rows, BlockState::kRunning, kFirstBackward, kLastBackward);
  summary.weight = peak_between(rows, BlockState::kRunning, Step::kWeight, Step::kWeight);
  return summary;
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
    block.rows = job.profile.memory_model == MemoryModel::kNative ? native_rows(job, plan, kind)
                                                                  : megatron_rows(job, plan, kind);
    block.summary = summarise(block.rows);
  }
  return set;
}

}  // namespace shardplan
