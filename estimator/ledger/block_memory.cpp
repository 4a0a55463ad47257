#include "estimator/ledger/block_memory.h"

#include <algorithm>

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/nanotron/blocks.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan {
namespace {

constexpr std::array<std::string_view, kNumBlockKinds> kBlockNames = {
    "embedding", "layer.first", "layer.dense", "layer.first_moe", "layer.moe", "layer.last",
    "mtp",       "head",        "logits",      "logits.cast",     "loss",      "sent_output"};

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

std::vector<BlockRow> rows_of(const Job& job, const Plan& plan, BlockKind kind) {
  switch (job.profile.memory_model) {
    case MemoryModel::kNative: return native_rows(job, plan, kind);
    case MemoryModel::kTorchtitan: return torchtitan_rows(job, plan, kind);
    case MemoryModel::kMegatronLocal: return megatron_local_rows(job, plan, kind);
    case MemoryModel::kNanotron: return nanotron_rows(job, plan, kind);
    case MemoryModel::kDeepspeed: return {};  // its rows are those of the state
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatron: break;
  }
  return megatron_rows(job, plan, kind);
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

bool has_block(const Job& job, BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
    case BlockKind::kHead:
    case BlockKind::kSentOutput: return true;
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss: return job.profile.memory_model == MemoryModel::kNanotron;
    case BlockKind::kFirstLayer:
    case BlockKind::kLastLayer: return job.profile.memory_model == MemoryModel::kTorchtitan;
    case BlockKind::kDenseLayer: return job.model.has_dense_layers();
    case BlockKind::kFirstMoeLayer:
      return job.profile.memory_model == MemoryModel::kTorchtitan && job.model.has_dense_layers() &&
             job.model.has_moe_layers();
    case BlockKind::kMoeLayer: return job.model.has_moe_layers();
    case BlockKind::kMtp: return job.model.num_mtp_layers > 0;
  }
  return false;
}

BlockMemory block_memory(const Job& job, const Plan& plan, BlockKind kind) {
  BlockMemory block;
  block.kind = kind;
  block.name = kBlockNames[static_cast<std::size_t>(kind)];
  if (!has_block(job, kind)) {
    return block;
  }
  const bool is_native = job.profile.memory_model == MemoryModel::kNative;
  block.rows = rows_of(job, plan, kind);
  block.has_frame = job.profile.allocator == AllocatorKind::kStaticArenas;
  block.writes_next_input = is_native;
  block.last_replayed = is_native ? Step::kForwardActivation : kLastForward;
  block.summary = summarise(block);
  return block;
}

SeparateNorms separate_norms(const Job& job, bool is_moe) {
  if (job.profile.memory_model != MemoryModel::kMegatron) {
    return {};
  }
  return {.attention = job.model.is_mla(), .ffn = is_moe};
}

bool rows_see_whole_plan(const Job& job) {
  switch (job.profile.memory_model) {
    case MemoryModel::kMegatron:
    case MemoryModel::kMegatronLocal:
    case MemoryModel::kNative: return false;
    case MemoryModel::kFujii2024:
    case MemoryModel::kTorchtitan:
    case MemoryModel::kNanotron:
    case MemoryModel::kDeepspeed: break;
  }
  return true;
}

namespace {

bool is_layer(BlockKind kind) {
  return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer || kind == BlockKind::kMtp;
}

bool is_moe(const Job& job, BlockKind kind) {
  return kind == BlockKind::kMoeLayer ||
         (kind == BlockKind::kMtp && job.model.layers.back().is_moe);
}

}  // namespace

bool sees_experts(const Job& job, BlockKind kind) {
  return rows_see_whole_plan(job) || is_moe(job, kind);
}

// Megatron's all-to-all exchanges as many rows whatever their number of ranks; what counts is
// whether there are several, and whether a rank has several experts to sort them by; how many,
// where they take turns or each pads its rows.
std::int64_t ep_seen_by(const Job& job, const Plan& plan, BlockKind kind) {
  if (!sees_experts(job, kind)) {
    return 1;
  }
  const FrameworkProfile& profile = job.profile;
  const bool sees_number = profile.memory_model != MemoryModel::kMegatron ||
                           profile.moe_dispatcher != MoeDispatcher::kAllToAll ||
                           plan.precision == Precision::kFp8 || !profile.moe_grouped_gemm ||
                           !fuses_weight_gradients(job, plan);
  return sees_number || plan.ep >= job.model.moe.num_experts ? plan.ep
                                                             : std::min<std::int64_t>(plan.ep, 2);
}

// Context parallelism is attention's.
bool sees_cp_method(const Job& job, BlockKind kind) {
  return rows_see_whole_plan(job) || is_layer(kind);
}

// Megatron and native: full recomputation replays whole blocks, whose rows stay as they are;
// selective recomputation names parts of layers.
Recompute recompute_seen_by(const Job& job, BlockKind kind, const Recompute& recompute) {
  if (rows_see_whole_plan(job)) {
    return recompute;
  }
  if (!is_layer(kind) || recompute.granularity != RecomputeGranularity::kSelective) {
    return {};
  }
  const bool experts = is_moe(job, kind);
  // The local layers share a norm in front of either kind of FFN, which asks for mlp.
  const bool is_local = job.profile.memory_model == MemoryModel::kMegatronLocal;
  Recompute seen = recompute;
  RecomputeModules& modules = seen.modules;
  const SeparateNorms norms = separate_norms(job, experts);
  modules.layernorm = modules.layernorm && (norms.attention || norms.ffn);
  modules.mlp = modules.mlp && (!experts || is_local);
  modules.moe = modules.moe && experts;
  modules.moe_act = modules.moe_act && experts && !modules.moe;
  modules.shared_experts = modules.shared_experts && experts && !modules.moe;
  return seen;
}

BlockSet block_set(const Job& job, const Plan& plan) {
  BlockSet set;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    set[static_cast<std::size_t>(i)] = block_memory(job, plan, static_cast<BlockKind>(i));
  }
  return set;
}

}  // namespace shardplan
