#include "estimator/stage_state.h"

#include "estimator/deepspeed_state.h"
#include "estimator/eager_rows.h"
#include "estimator/megatron_state.h"
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
    case MemoryModel::kDeepspeed: return deepspeed_state_rows(job, plan, tensors);
    case MemoryModel::kFujii2024:
    case MemoryModel::kMegatronLocal:
    case MemoryModel::kMegatron: break;
  }
  return megatron_state_rows(job, plan, stage, tensors);
}

}  // namespace

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage) {
  return stage_state(job, plan, stage, stage_tensors(job, plan, stage));
}

StageState stage_state(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors) {
  StageState state;
  state.rows = rows_of(job, plan, stage, tensors);
  state.parameters = tensors.dense + tensors.expert;
  for (const StateRow& row : state.rows) { state.bytes.add(row); }
  if (job.profile.memory_model == MemoryModel::kTorchtitan) {
    state.bytes.side_streams = torchtitan_side_streams(job, plan);
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    state.bytes.start_up_only = deepspeed_left_by_start_up(job, plan, tensors.dense);
  }
  return state;
}

}  // namespace shardplan
