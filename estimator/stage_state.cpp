#include "estimator/stage_state.h"

#include <algorithm>

#include "estimator/block_rows_megatron.h"
#include "estimator/deepspeed_state.h"
#include "estimator/megatron_fsdp.h"
#include "estimator/megatron_sequence_rows.h"
#include "estimator/megatron_state.h"
#include "estimator/nanotron_rows.h"
#include "estimator/native_state.h"
#include "estimator/torchtitan_rows.h"

namespace shardplan {
namespace {

std::vector<StateRow> rows_of(const Job& job, const Plan& plan, const StageLayout& stage,
                              const StageTensors& tensors) {
  switch (job.profile.memory_model) {
    case MemoryModel::kNative: return native_state_rows(job, plan, stage, tensors);
    case MemoryModel::kTorchtitan: return torchtitan_state(job, plan, stage);
    case MemoryModel::kNanotron: return nanotron_state_rows(job, plan, stage, tensors);
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatronLocal:
    case MemoryModel::kMegatron:
    case MemoryModel::kDeepspeed: break;  // the last: deepspeed_state
  }
  return megatron_state_rows(job, plan, stage, tensors);
}

}  // namespace

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       std::optional<std::int64_t> data_rank) {
  return stage_state(job, plan, stage, stage_tensors(job, plan, stage), data_rank);
}

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors, std::optional<std::int64_t> data_rank) {
  StageState state;
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    state = deepspeed_state(job, plan, data_rank);
  } else {
    state.rows = rows_of(job, plan, stage, tensors);
  }
  state.parameters = tensors.dense + tensors.expert;
  for (const StateRow& row : state.rows) { state.bytes.add(row); }
  if (job.profile.memory_model == MemoryModel::kTorchtitan) {
    state.bytes.side_streams = torchtitan_side_streams(job, plan);
  }
  if (accumulates_beside(job, plan) && !fuses_weight_gradients(job, plan)) {
    state.bytes.side_streams = state.parameters * bytes_of(activation_dtype(plan.precision));
  }
  return state;
}

SequenceRows sequence_rows(const Job& job, const Plan& plan, const StageEnds& ends) {
  switch (job.profile.memory_model) {
    case MemoryModel::kNative: return native_sequence_rows(job, plan, ends);
    case MemoryModel::kTorchtitan: return torchtitan_sequence_rows(job, plan, ends);
    case MemoryModel::kNanotron: return nanotron_sequence_rows(job, plan, ends);
    case MemoryModel::kDeepspeed: return {};  // it stands among the rows of the state
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatronLocal:
    case MemoryModel::kMegatron: break;
  }
  return megatron_sequence_rows(job, plan, ends);
}

// Megatron's: whether there are several stages, several chunks on each, and how many microbatches
// before the last one leave gradients of the output layer for later.
std::array<std::int64_t, 2> pipeline_seen_by_sequences(const Job& job, const Plan& plan,
                                                       std::int64_t num_microbatches) {
  if (is_megatron(job.profile.memory_model)) {
    const std::int64_t limit = job.profile.deferred_embedding_wgrads;
    const std::int64_t deferred = limit > 0 ? std::min(limit + 1, num_microbatches) : 0;
    return {plan.pp > 1 ? 1 : 0, 2 * deferred + (plan.vpp > 1 ? 1 : 0)};
  }
  return {2 * plan.vpp + (plan.pp > 1 ? 1 : 0),
          std::ssize(kSchedules) * num_microbatches + static_cast<std::int64_t>(plan.schedule)};
}

}  // namespace shardplan
